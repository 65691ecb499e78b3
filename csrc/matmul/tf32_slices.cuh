// Slices of K in the TF32 kernel: the blocks of a cluster add what each has of their tile. Device
// only, sm_90a, needs no torch.
#pragma once

#include <cstdint>

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_cluster.cuh"
#include "common/sm90_mbarrier.cuh"
#include "matmul/tf32_tile.cuh"

namespace my_ops {
namespace tf32 {

template <class Tile>
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(Tile::kConsumerThreads) : "memory");
}

__device__ __forceinline__ float4 load_strip(uint32_t address) {
  float4 strip;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(strip.x), "=f"(strip.y), "=f"(strip.z), "=f"(strip.w)
               : "r"(address)
               : "memory");
  return strip;
}

// Adds the sums of all slices, in their order, and calls store_strip(strip, sums) for this block's
// share: every slices-th strip. The copy engine brings what the other blocks have of these.
//
// All goes through shared memory and loops: code that runs once is cold. Unrolled to the end it
// took 1 us of 16 more (n = 1024, tiles of 128 x 128 in two slices), and 2 us more where every
// thread sent its sums itself.
template <class Tile, class Store>
__device__ __forceinline__ void add_slices(const Block<Tile>& block, int thread,
                                           const float (&sum)[Tile::kAccumulators],
                                           const Store& store_strip) {
  constexpr int kStripBytes = Tile::kStripBytes;
  const int slices = block.slices, rounds = (Tile::kStrips + slices - 1) / slices;
  const uint32_t arriving = block.shared + Tile::kStrips * kStripBytes;
  auto arrival = [&](int receiver, int sender, int round) {
    return arriving + ((sender - (sender > receiver)) * rounds + round) * kStripBytes;
  };

  sync_consumers<Tile>();  // no stage is read any more
  sm90::arrive_at_cluster();
  const uint32_t mine = block.shared + thread * 16;
#pragma unroll
  for (int strip = 0; strip < Tile::kStrips; ++strip) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + strip * kStripBytes),
                 "f"(sum[4 * strip]), "f"(sum[4 * strip + 1]), "f"(sum[4 * strip + 2]),
                 "f"(sum[4 * strip + 3])
                 : "memory");
  }
  sm90::fence_for_copies();
  sync_consumers<Tile>();
  sm90::wait_cluster();  // nor in the other blocks
  const int receiver = thread % slices;
  if (thread < Tile::kStrips && receiver != block.slice) {
    sm90::bulk_copy_to_rank(arrival(receiver, block.slice, thread / slices),
                            block.shared + thread * kStripBytes, kStripBytes, block.exchanged(),
                            receiver);
  }
  __syncwarp();
  sm90::wait_barrier(block.exchanged(), 0);
  sm90::arrive_at_cluster();

  constexpr int kBatch = 4;  // strips, whose loads overlap
#pragma unroll 1
  for (int first = 0; first < rounds; first += kBatch) {
    float4 total[kBatch] = {};
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int round = min(first + i, rounds - 1), strip = block.slice + round * slices;
        const float4 next = load_strip((slice == block.slice ? block.shared + strip * kStripBytes
                                                             : arrival(block.slice, slice, round)) +
                                       thread * 16);
        total[i].x += next.x, total[i].y += next.y, total[i].z += next.z, total[i].w += next.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int strip = block.slice + (first + i) * slices;
      if (strip < Tile::kStrips) store_strip(strip, total[i]);
    }
  }
}

}  // namespace tf32
}  // namespace my_ops
