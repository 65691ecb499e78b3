// The consumers' part of the tensor-core kernel. Device only, sm_90a, needs no torch.
#pragma once

#include <cstdint>

#include "common/sm90_mbarrier.cuh"
#include "common/sm90_wgmma.cuh"
#include "matmul/wgmma_ring.cuh"
#include "matmul/wgmma_tile.cuh"

namespace my_ops {
namespace tensor_core {

// All products of one stage, added to `sum`, or in its place where `fresh`.
template <class Tile>
__device__ __forceinline__ void multiply_stage(float (&sum)[Tile::kAccumulators], uint64_t a,
                                               uint64_t b, bool fresh) {
  constexpr int kSteps = Tile::Layout::kRowBytes / 32;
#pragma unroll
  for (int product = 0; product < Tile::kProducts; ++product) {
    const int plane_a = plane_of_a<Tile::kProducts>(product) * (Tile::kPlaneBytesA >> 4);
    const int plane_b = plane_of_b<Tile::kProducts>(product) * (Tile::kPlaneBytesB >> 4);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      sm90::Wgmma<Tile::kElement, Tile::kCols>::run(sum, a + plane_a + step * sm90::kDescriptorStep,
                                                    b + plane_b + step * sm90::kDescriptorStep,
                                                    !(fresh && product == 0 && step == 0));
    }
  }
}

// To C, or to this slice's place in the workspace. A thread holds pairs of neighbouring columns, of
// two rows 8 apart in turn.
template <class Tile, class Product>
__device__ __forceinline__ void store_result(const Product& product, const Work& work,
                                             uint32_t rank, int warp, int lane,
                                             const float (&result)[Tile::kAccumulators]) {
  constexpr int kAccumulators = Tile::kAccumulators, kConsumerThreads = 128 * Tile::kConsumers;
  if (work.cut >= 0) {
    float4* const partial =
        reinterpret_cast<float4*>(product.partial) +
        ((int64_t{work.slice} * product.cut_tiles + work.cut) * Tile::kCluster + rank) *
            (kAccumulators / 4 * kConsumerThreads) +
        warp * 32 + lane;
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
      partial[i / 4 * kConsumerThreads] =
          make_float4(result[i], result[i + 1], result[i + 2], result[i + 3]);
    }
    return;
  }
  const auto tile = tile_position(work.tile, product.row_tiles, product.col_tiles);
  const int64_t row =
      (int64_t{tile.row} * Tile::kCluster + rank) * Tile::kRows + warp * 16 + lane / 4;
  const int64_t col = int64_t{tile.col} * Tile::kCols + lane % 4 * 2;
  product.output.template store<kAccumulators>(row, col, result);
}

// sum += part, by FADD; where operands were scaled, times the factors of the row and the column.
template <class Tile>
__device__ __forceinline__ void promote(float (&sum)[Tile::kAccumulators],
                                        const float (&part)[Tile::kAccumulators], uint32_t scales,
                                        int warp, int lane) {
  if constexpr (Tile::kScaled) {
    float row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm volatile("ld.shared.f32 %0, [%1];"
                   : "=f"(row[half])
                   : "r"(scales + (warp * 16 + lane / 4 + half * 8) * 4));
    }
#pragma unroll
    for (int i = 0; i < Tile::kAccumulators; i += 4) {
      float x, y;
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(x), "=f"(y)
                   : "r"(scales + (Tile::kRows + i * 2 + lane % 4 * 2) * 4));
      sum[i] += part[i] * row[0] * x;
      sum[i + 1] += part[i + 1] * row[0] * y;
      sum[i + 2] += part[i + 2] * row[1] * x;
      sum[i + 3] += part[i + 3] * row[1] * y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Tile::kAccumulators; ++i) sum[i] += part[i];
  }
}

template <class Tile, class Product>
__device__ __forceinline__ void consume(const Product& product, const Shared<Tile>& shared,
                                        uint32_t rank) {
  constexpr int kAccumulators = Tile::kAccumulators;
  const int thread = static_cast<int>(threadIdx.x) - 128;
  // The same in all lanes, and known to be by the compiler.
  const int warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
  const int warpgroup = warp / 4;
  constexpr int kRowBytes = Tile::Layout::kRowBytes;
  const uint64_t first_a =
      sm90::tile_descriptor<kRowBytes>(shared.base + warpgroup * kGroupRows * kRowBytes);
  const uint64_t first_b = sm90::tile_descriptor<kRowBytes>(shared.base + Tile::kOffsetB);
  // A stage is free again when every warp of the blocks that its B was sent to is done with it.
  auto release = [&](int stage) {
    __syncwarp();
    if (lane < Tile::kCluster) sm90::arrive_at_rank(shared.empty(stage), lane);
  };

  Ring<Tile::kStages> ring;
  const int works = work_count(product);
  for (int index = blockIdx.x / Tile::kCluster; index < works;
       index += gridDim.x / Tile::kCluster) {
    const Work work = work_of_index<Tile::kUnit>(product, index);
    float part[kAccumulators];
    // Starts the products of the next stage, and releases the one before it once those are done.
    auto multiply_next = [&](bool fresh, bool release_last) {
      sm90::wait_barrier(shared.full(ring.stage), ring.parity);
      const uint64_t offset = ring.stage * (Tile::kStageBytes >> 4);
      sm90::wgmma_fence();
      multiply_stage<Tile>(part, first_a + offset, first_b + offset, fresh);
      sm90::wgmma_commit();
      if (release_last) {
        sm90::wgmma_wait<1>();
        release(ring.last());
      }
      ring.next();
    };
    auto finish = [&] {
      sm90::wgmma_wait<0>();
      sm90::wgmma_pin(part);
    };
    if constexpr (Tile::kPromote == 0) {
      multiply_next(true, false);
      for (int k = 1; k < work.k_tiles; ++k) multiply_next(false, true);
      finish();
      release(ring.last());
      store_result<Tile>(product, work, rank, warp, lane, part);
    } else {
      float sum[kAccumulators];
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) sum[i] = 0;
      for (int k = 0; k < work.k_tiles; k += Tile::kPromote) {
#pragma unroll
        for (int stage = 0; stage < Tile::kPromote; ++stage) multiply_next(stage == 0, stage > 0);
        finish();
        if (!Tile::kScaled) release(ring.last());
        promote<Tile>(sum, part, shared.scales(ring.last()), warp, lane);
        if (Tile::kScaled) release(ring.last());
      }
      store_result<Tile>(product, work, rank, warp, lane, sum);
    }
  }
}

}  // namespace tensor_core
}  // namespace my_ops
