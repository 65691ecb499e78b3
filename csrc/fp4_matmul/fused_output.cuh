// The end of a tile of the fused kernel whose sums are spread over several warpgroups or blocks:
// they are added, results stored. Device only, sm_90a, needs no torch.
#pragma once

#include "common/sm90_cluster.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fused_store.cuh"

namespace my_ops {

// All threads of the block or its cluster, in both roles. Without a cluster its barrier would be
// that of __syncthreads(), for which all threads have to be at one place in the program.
template <typename Tile>
__device__ __forceinline__ void sync_roles(bool in_cluster) {
  if (in_cluster) {
    sm90::sync_cluster();
  } else {
    asm volatile("barrier.sync 2, %0;" ::"n"(Tile::kThreads) : "memory");
  }
}

// Adds what all warpgroups of a row group, in all blocks of the cluster, have left in shared memory
// and stores this thread's share of the strips.
template <typename Tile, int kSplits>
__device__ __forceinline__ void add_and_store(const FusedArguments& args, uint32_t base, int rank,
                                              int64_t first_token, const StripWriter& writer) {
  constexpr int kParts = kSplits * Tile::kDepthGroups;
  constexpr int kShare = (Tile::kStrips + kParts - 1) / kParts;  // of the strips
  const int row_thread = threadIdx.x % Tile::kRowThreads;
  const int first = rank * Tile::kDepthGroups + threadIdx.x / Tile::kRowThreads;
  float4 parts[kShare][kParts];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int j = min(first + i * kParts, Tile::kStrips - 1);
      const int thread = p % Tile::kDepthGroups * Tile::kRowThreads + row_thread;
      parts[i][p] = sm90::load_at_rank<float4>(base + (j * Tile::kConsumers + thread) * 16,
                                               p / Tile::kDepthGroups);
    }
  }
  const auto for_each_strip = [&](auto&& store) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      float4 sum = parts[i][0];
#pragma unroll
      for (int p = 1; p < kParts; ++p) {
        const float4& part = parts[i][p];
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
      }
      const int j = first + i * kParts;
      if (j < Tile::kStrips) store(first_token + 8 * j, sum);
    }
  };
  store_strips(args, writer, for_each_strip);
}

// Where the barriers of an exchange begin: one at which the warps of the other block say that they
// read no more x, and one for every part of the sums that it sends.
template <typename Tile>
__device__ __forceinline__ uint32_t exchange_barriers(uint32_t base) {
  return base + Tile::kBarriers + Tile::kStages * 16;
}

template <typename Tile>
__device__ __forceinline__ void init_exchange(uint32_t base) {
  const uint32_t barriers = exchange_barriers<Tile>(base);
  sm90::init_barrier(barriers, Tile::kRowWarps);
  for (int part = 1; part <= Tile::kExchangeParts; ++part) {
    sm90::init_barrier(barriers + part * 8, 1);
    sm90::arrive_expecting(barriers + part * 8, kExchangeStrips * Tile::kConsumers * 16);
  }
}

// Two blocks of a cluster have a part of every sum: each sends what the other one stores, every
// second strip, and adds what it gets as it comes: at 256 rows of x the sums are 4200 cycles on
// their way. They do so once, at their end.
template <typename Tile>
__device__ __forceinline__ void exchange_and_store(const FusedArguments& args, uint32_t base,
                                                   int rank, int64_t first_token,
                                                   const float (&sums)[Tile::kAccumulators],
                                                   const StripWriter& writer) {
  constexpr int kPitch = Tile::kConsumers * 16;
  const uint32_t place = base + threadIdx.x * 16;
  const auto strip = [&](int i, bool odd) {
    const int even = 8 * i;
    return odd ? make_float4(sums[even + 4], sums[even + 5], sums[even + 6], sums[even + 7])
               : make_float4(sums[even], sums[even + 1], sums[even + 2], sums[even + 3]);
  };
  const uint32_t ready = exchange_barriers<Tile>(base), arrived = ready + 8;
  if (threadIdx.x % 32 == 0) sm90::arrive_at_rank(ready, rank ^ 1);
  sm90::wait_barrier(ready, 0);
  const uint32_t remote = sm90::address_at_rank(place, rank ^ 1);
  const uint32_t remote_arrived = sm90::address_at_rank(arrived, rank ^ 1);
#pragma unroll
  for (int i = 0; i < Tile::kStrips / 2; ++i) {
    sm90::store_remote_async(remote + i * kPitch, strip(i, rank == 0),
                             remote_arrived + i / kExchangeStrips * 8);
  }
#pragma unroll
  for (int part = 0; part < Tile::kExchangeParts; ++part) {
    const int first = part * kExchangeStrips;
    sm90::wait_cluster_barrier(arrived + part * 8, 0);
    store_all<kExchangeStrips, 16>(args, writer, first_token + 8 * rank + 16 * first, [&](int i) {
      const float4 mine = strip(first + i, rank == 1);
      const uint4 words = load_shared16(place + (first + i) * kPitch);
      return make_float4(mine.x + bits_float(words.x), mine.y + bits_float(words.y),
                         mine.z + bits_float(words.z), mine.w + bits_float(words.w));
    });
  }
}

}  // namespace my_ops
