// The end of a tile of the fused kernel whose sums are spread over several warpgroups or blocks:
// they are added, results stored. Device only, sm_90a, needs no torch.
#pragma once

#include "common/sm90_cluster.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fused_mail.cuh"
#include "fp4_matmul/fused_store.cuh"

namespace my_ops {

// The sums of the second depth group go to the first by way of shared memory, where these warps
// have slots, all read, unless slots are of a block (kGroupSums). All consumers; the sums of a tile
// are then those of the first group.
template <typename Tile>
__device__ __forceinline__ void add_depth_groups(float (&sums)[Tile::kAccumulators],
                                                 uint32_t base) {
  constexpr int kPitch = 32 * 16;
  static_assert(Tile::kDepthGroups == 2 && Tile::kStrips * kPitch <= Tile::kSumPitch, "room");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t slots =
      base + Tile::kGroupSums + warp % Tile::kRowWarps * Tile::kSumPitch + lane * 16;
  const bool gives = warp >= Tile::kRowWarps;
  if (gives) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < Tile::kStrips; ++j) {
      store_shared16(slots + j * kPitch,
                     make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
    }
  }
  asm volatile("bar.sync 1, %0;" ::"n"(Tile::kConsumers) : "memory");
  if (!gives) {
#pragma unroll
    for (int j = 0; j < Tile::kStrips; ++j) {
      const uint4 other = load_shared16(slots + j * kPitch);
      sums[4 * j] += bits_float(other.x);
      sums[4 * j + 1] += bits_float(other.y);
      sums[4 * j + 2] += bits_float(other.z);
      sums[4 * j + 3] += bits_float(other.w);
    }
  }
}

// All sums of a tile, which are in this block, where no warp repeats rows of another (warp_row).
template <typename Tile>
__device__ __forceinline__ void store_as_boxes(const FusedArguments& args, uint32_t base,
                                               const StripWriter& writer, int warp, int row_tile,
                                               int first_token,
                                               const float (&sums)[Tile::kAccumulators]) {
  const uint32_t staging = base + Tile::kStaging + warp / 4 * kOutputStagingBytes;
  with_pair_type(args.out, [&](auto type) {
    store_boxes<decltype(type), true>(args.y_map, writer, staging, warp,
                                      row_tile * Tile::kRows + warp / 4 * 64, first_token, sums);
  });
}

// How `blocks` of a cluster, each with a part of every sum, exchange them: of pairs of strips each
// stores every blocks-th. They come into stages that are read no more, where possible while the
// last two still are.
template <typename Tile>
struct Exchange {
  static constexpr int kPairs = Tile::kStrips / 2;
  static constexpr int kPitch = Tile::kRowThreads * 16;  // from a strip to the next
  static constexpr int kPartsOfStage = Tile::kStageBytes / (2 * kPitch);
  const int blocks;

  __device__ __forceinline__ constexpr int rounds() const { return (kPairs + blocks - 1) / blocks; }
  __device__ __forceinline__ constexpr int stages() const {
    return (rounds() * blocks + kPartsOfStage - 1) / kPartsOfStage;
  }
  // Where the stages begin in the sequence of `count` that a block goes through.
  __device__ __forceinline__ constexpr int first_stage(int count) const {
    return count - stages() - min(2, Tile::kStages - stages());
  }
  __device__ __forceinline__ constexpr int part_bytes() const { return 2 * kPitch; }
  // Shared offset of a part, where the first is part 0 of the first pair that a block stores.
  __device__ __forceinline__ constexpr int place(int count, int part) const {
    const int stage = (first_stage(count) + Tile::kStages + part / kPartsOfStage) % Tile::kStages;
    return stage * Tile::kStageBytes + part % kPartsOfStage * part_bytes();
  }
};

// Where the barriers of an exchange begin: one at which the blocks say that there is room for sums,
// and one for every pair of strips that is stored here.
template <typename Tile>
__device__ __forceinline__ uint32_t exchange_barriers(uint32_t base) {
  return base + Tile::kBarriers + Tile::kStages * 16;
}

template <typename Tile>
__device__ __forceinline__ void init_exchange(uint32_t base, int blocks) {
  const Exchange<Tile> exchange{blocks};
  const uint32_t barriers = exchange_barriers<Tile>(base);
  sm90::init_barrier(barriers, blocks);
#pragma unroll 1
  for (int round = 0; round * blocks < exchange.kPairs; ++round) {
    sm90::init_barrier(barriers + 8 + round * 8, 1);
    sm90::arrive_expecting(barriers + 8 + round * 8, (blocks - 1) * exchange.part_bytes());
  }
}

// Of one thread, when a block has asked for its last stage: of `count` all in all.
template <typename Tile>
__device__ __forceinline__ void announce_room(uint32_t base, const FusedBarriers<Tile>& barriers,
                                              int count, int blocks) {
  const Exchange<Tile> exchange{blocks};
  for (int i = 0; i < exchange.stages(); ++i) {
    const int position = exchange.first_stage(count) + i;
    if (position < 0) continue;
    const auto place = StagePlace<Tile>::after(position);
    sm90::wait_barrier(barriers.empty + place.slot * 8, place.parity);
  }
  for (int b = 0; b < blocks; ++b) sm90::arrive_at_rank(exchange_barriers<Tile>(base), b);
}

// The blocks send their parts of sums to the one that stores them, which adds them in the order of
// K as they come: at 256 rows of x the sums are 4200 cycles on their way. They do so once, at their
// end. `count_of` is how many stages a block has gone through. Its own parts go by way of shared
// memory, too, so that one piece of code stores all pairs: a block runs it once, and to fetch
// instructions takes longer than to run them.
template <typename Tile, int kBlocks, typename CountOf>
__device__ __forceinline__ void exchange_and_store(const FusedArguments& args, uint32_t base,
                                                   const FusedWorks& works, int tile,
                                                   int64_t first_token,
                                                   const float (&sums)[Tile::kAccumulators],
                                                   const StripWriter& writer,
                                                   const CountOf& count_of) {
  const int rank = kBlocks > 1 ? works.rank : 0;
  constexpr int kPitch = Exchange<Tile>::kPitch, kPairs = Exchange<Tile>::kPairs;
  constexpr Exchange<Tile> exchange{kBlocks};
  const uint32_t mine = base + threadIdx.x * 16;
  const uint32_t ready = exchange_barriers<Tile>(base), arrived = ready + 8;
  sm90::wait_barrier(ready, 0);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int owner = pair % kBlocks, round = pair / kBlocks;
    const uint32_t to = mine + exchange.place(count_of(owner), round * kBlocks + rank);
    const float* const sum = sums + 8 * pair;
    const float4 low = {sum[0], sum[1], sum[2], sum[3]}, high = {sum[4], sum[5], sum[6], sum[7]};
    if (owner == rank) {
      store_shared16(to, low);
      store_shared16(to + kPitch, high);
    } else {
      const uint32_t remote = sm90::address_at_rank(to, owner);
      const uint32_t barrier = sm90::address_at_rank(arrived + round * 8, owner);
      sm90::store_remote_async(remote, low, barrier);
      sm90::store_remote_async(remote + kPitch, high, barrier);
    }
  }
  const int count = count_of(rank);
  const auto sum_of = [&](int round, int i) {
    float4 sum;
#pragma unroll
    for (int part = 0; part < kBlocks; ++part) {
      const uint4 words =
          load_shared16(mine + exchange.place(count, round * kBlocks + part) + i * kPitch);
      const float4 next = {bits_float(words.x), bits_float(words.y), bits_float(words.z),
                           bits_float(words.w)};
      sum = part == 0 ? next
                      : make_float4(sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w);
    }
    return sum;
  };
  if constexpr (Tile::kMail) {
    const auto take = [&](int round, float4(&strips)[2]) {
      sm90::wait_cluster_barrier(arrived + round * 8, 0);
      strips[0] = sum_of(round, 0);
      strips[1] = sum_of(round, 1);
    };
    if (kBlocks > 1 && args.mail.parts == 2) {
      exchange_by_mail<Tile, kBlocks, 2>(args, rank, works.part, tile, first_token, writer, take);
    } else {
      exchange_by_mail<Tile, kBlocks, 3>(args, rank, works.part, tile, first_token, writer, take);
    }
  } else {
    // Two at a time: one alone is mostly latency.
#pragma unroll 1
    for (int first = 0; first * kBlocks + rank < kPairs; first += 2) {
      const bool two = (first + 1) * kBlocks + rank < kPairs;
      sm90::wait_cluster_barrier(arrived + first * 8, 0);
      if (two) sm90::wait_cluster_barrier(arrived + first * 8 + 8, 0);
      float4 strips[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < 2 || two) strips[i] = sum_of(first + i / 2, i % 2);
      }
      const int64_t token = first_token + 16 * (first * kBlocks + rank);
      store_all<2, 8>(args, writer, token, [&](int i) { return strips[i]; });
      if (two) {
        store_all<2, 8>(args, writer, token + 16 * kBlocks, [&](int i) { return strips[2 + i]; });
      }
    }
  }
}

}  // namespace my_ops
