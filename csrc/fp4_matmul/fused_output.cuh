// The end of a tile of the fused kernel: sums of several warpgroups and blocks are added, results
// stored. Device only, sm_90a, needs no torch.
#pragma once

#include "common/sm90_cluster.cuh"
#include "fp4_matmul/fused_step.cuh"

namespace my_ops {

// What turns sums into results: two factors, as the product of two global scales may leave the
// range of a float where the result does not.
struct ResultScale {
  float first = 1.0f, second = 1.0f;

  __device__ __forceinline__ float operator()(float sum) const { return sum * first * second; }
};

__device__ __forceinline__ ResultScale result_scale(float weight, float x) {
  const double both = static_cast<double>(weight) * x;
  if (both > 0x1p120) return {0x1p100f, static_cast<float>(both * 0x1p-100)};
  if (both < 0x1p-120 && both > 0) return {0x1p-100f, static_cast<float>(both * 0x1p100)};
  return {static_cast<float>(both), 1.0f};
}

// An 8 x 8 matrix of 16-bit elements, a row in four lanes, transposed.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The rows n and n + 8 of the weight that a lane has sums of, n = first_n + lane / 4, and how these
// become results.
struct StripWriter {
  const ProductOutput& out;
  ResultScale scale;
  int64_t n;
  float bias_low, bias_high;

  __device__ __forceinline__ StripWriter(const ProductOutput& out, const ResultScale& scale,
                                         int first_n)
      : out(out), scale(scale), n(first_n + threadIdx.x % 32 / 4) {
    bias_low = n < out.N ? load_bias(out, n) : 0.0f;
    bias_high = n + 8 < out.N ? load_bias(out, n + 8) : 0.0f;
  }

  // Tokens first_token + 2 * (lane % 4) and the next: sums x, y of row n and z, w of n + 8.
  __device__ __forceinline__ void store(int64_t first_token, float4 sum) const {
    const float results[4] = {scale(sum.x) + bias_low, scale(sum.y) + bias_low,
                              scale(sum.z) + bias_high, scale(sum.w) + bias_high};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t token = first_token + threadIdx.x % 4 * 2 + i % 2;
      if (token < out.M && n + i / 2 * 8 < out.N) {
        store_element(out, token, n + i / 2 * 8, results[i]);
      }
    }
  }

  // The same for dense rows of 16-bit results in pairs: they change places first, so that a lane
  // writes two neighbours.
  template <typename result_t>
  __device__ __forceinline__ void store_pairs(int64_t first_token, float4 sum) const {
    const uint32_t low =
        transpose_matrix(pack_pair(result_t{}, scale(sum.x) + bias_low, scale(sum.y) + bias_low));
    const uint32_t high =
        transpose_matrix(pack_pair(result_t{}, scale(sum.z) + bias_high, scale(sum.w) + bias_high));
    const int lane = threadIdx.x % 32;
    const int64_t token = first_token + lane / 4;
    const int64_t pair_n = n - lane / 4 + lane % 4 * 2;
    if (token >= out.M) return;
    auto* const row = static_cast<uint16_t*>(out.data) + token * out.row_stride;
    if (pair_n < out.N) *reinterpret_cast<uint32_t*>(row + pair_n) = low;
    if (pair_n + 8 < out.N) *reinterpret_cast<uint32_t*>(row + pair_n + 8) = high;
  }
};

// Calls `body` with a value of the results' 16-bit type.
template <typename Body>
__device__ __forceinline__ void with_pair_type(const ProductOutput& out, Body&& body) {
  if (out.type == DenseType::float16) {
    body(__half{});
  } else {
    body(__nv_bfloat16{});
  }
}

// Stores the strips that `for_each_strip` gives, in pairs where the results allow it.
template <typename ForEachStrip>
__device__ __forceinline__ void store_strips(const FusedArguments& args, const StripWriter& writer,
                                             const ForEachStrip& for_each_strip) {
  if (args.pairs) {
    with_pair_type(args.out, [&](auto type) {
      for_each_strip([&](int64_t token, float4 sum) {
        writer.template store_pairs<decltype(type)>(token, sum);
      });
    });
  } else {
    for_each_strip([&](int64_t token, float4 sum) { writer.store(token, sum); });
  }
}

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

// Two blocks of a cluster have a part of every sum: each sends what the other one stores, every
// second strip, and adds what it gets.
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
  sm90::sync_cluster();  // nobody reads x any more
  const uint32_t remote = sm90::address_at_rank(place, rank ^ 1);
#pragma unroll
  for (int i = 0; i < Tile::kStrips / 2; ++i)
    sm90::store_remote(remote + i * kPitch, strip(i, rank == 0));
  sm90::sync_cluster();
  const auto for_each_strip = [&](auto&& store) {
#pragma unroll
    for (int i = 0; i < Tile::kStrips / 2; ++i) {
      const float4 mine = strip(i, rank == 1);
      const uint4 words = load_shared16(place + i * kPitch);
      store(first_token + 8 * (2 * i + rank),
            make_float4(mine.x + bits_float(words.x), mine.y + bits_float(words.y),
                        mine.z + bits_float(words.z), mine.w + bits_float(words.w)));
    }
  };
  store_strips(args, writer, for_each_strip);
}

}  // namespace my_ops
