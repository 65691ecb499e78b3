// The consumers' part of the TF32 kernel. Device only, sm_90a, needs no torch.
#pragma once

#include <cstdint>

#include "common/sm90_mbarrier.cuh"
#include "common/sm90_wgmma.cuh"
#include "common/sm90_wgmma_registers.cuh"
#include "matmul/tf32_slices.cuh"
#include "matmul/tf32_tile.cuh"
#include "matmul/wgmma_ring.cuh"

namespace my_ops {
namespace tf32 {

using tensor_core::Ring;

// A strip's sums to C. M, N and the stride are multiples of 4: pairs are aligned, and wholly inside
// or outside of C.
template <class Tile, bool kAlongRows, bool kTransposed>
__device__ __forceinline__ void store(const Product& product, int row, int col, float4 sums) {
  if (col >= product.N) return;
  auto pair = [&](int64_t line, int along, float first, float second) {
    *reinterpret_cast<float2*>(product.C + line * product.stride + along) =
        make_float2(first, second);
  };
  if constexpr (kTransposed) {
    static_assert(kAlongRows, "pairs of rows");
    if (row >= product.M) return;
    pair(col, row, sums.x, sums.z);
    pair(col + 1, row, sums.y, sums.w);
  } else {
    constexpr int kGap = ThreadPosition<kAlongRows>::kGap;
    if (row < product.M) pair(row, col, sums.x, sums.y);
    if (row + kGap < product.M) pair(row + kGap, col, sums.z, sums.w);
  }
}

template <class Tile, bool kAlongRows, bool kTransposed>
__device__ __forceinline__ void consume(const Product& product, const Block<Tile>& block) {
  constexpr int kSteps = kDepth / 8;  // instructions of a stage
  const int thread = static_cast<int>(threadIdx.x) - 128;
  // The same in all lanes, and known to be by the compiler.
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  using Position = ThreadPosition<kAlongRows>;
  const Position position(warp, lane);
  const uint64_t first_a =
      sm90::tile_descriptor<kRowBytes>(block.shared + warp / 4 * 64 * kRowBytes);
  const uint64_t first_b = sm90::tile_descriptor<kRowBytes>(block.shared + Tile::kOffsetB);
  auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) sm90::arrive(block.empty(stage));
  };

  float sum[Tile::kAccumulators];
  Ring<Tile::kStages> ring;
  // Starts the products of the next stage, and releases the one before it once those are done.
  auto multiply_next = [&](uint32_t(&a)[kSteps][4], bool fresh) {
    sm90::wait_barrier(block.full(ring.stage), ring.parity);
    if constexpr (kAlongRows) {
      // Rows `row` and row + 1 of K = t, then those of t + 4.
      const uint32_t box = block.stage(ring.stage) + warp / 2 * kBoxBytes + position.row % 4 * 4;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = lane % 4 + 4 * half, chunk = Position::chunk(warp, lane) ^ k;
          asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                       : "=r"(a[step][2 * half]), "=r"(a[step][2 * half + 1])
                       : "r"(box + (step * 8 + k) * kRowBytes + chunk * 16)
                       : "memory");
        }
      }
    }
    const uint64_t offset = ring.stage * (Tile::kStageBytes >> 4);
    sm90::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t along_k = offset + step * sm90::kDescriptorStep;
      const bool accumulate = !(fresh && step == 0);
      if constexpr (kAlongRows) {
        sm90::WgmmaRegisters<float, Tile::kCols>::run(sum, a[step], first_b + along_k, accumulate);
      } else {
        sm90::Wgmma<sm90::Element::tf32, Tile::kCols>::run(sum, first_a + along_k,
                                                           first_b + along_k, accumulate);
      }
    }
    sm90::wgmma_commit();
    sm90::wgmma_wait<1>();
    if (!fresh) release(ring.last());
    ring.next();
  };
  // Two sets of A's registers: one is loaded while the other one is multiplied.
  uint32_t even[kSteps][4], odd[kSteps][4];
  for (int i = 0; i < block.k_tiles; i += 2) {
    multiply_next(even, i == 0);
    multiply_next(odd, false);
  }
  sm90::wgmma_wait<0>();
  sm90::wgmma_pin(sum);

  auto store_strip = [&](int strip, float4 sums) {
    store<Tile, kAlongRows, kTransposed>(product, block.row + position.row,
                                         block.col + position.col + 8 * strip, sums);
  };
  if (Tile::kSliced && block.slices > 1) {
    add_slices<Tile>(block, thread, sum, store_strip);
    return;
  }
#pragma unroll
  for (int strip = 0; strip < Tile::kStrips; ++strip) {
    store_strip(strip, make_float4(sum[4 * strip], sum[4 * strip + 1], sum[4 * strip + 2],
                                   sum[4 * strip + 3]));
  }
}

}  // namespace tf32
}  // namespace my_ops
