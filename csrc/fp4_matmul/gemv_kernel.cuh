// y = x * Wq^T + bias for one row of x and a ragged weight (ragged_rows.h), on Hopper. Device only,
// sm_90a, needs no torch.
//
// A block owns as many rows of the weight as any other, or one less, and has all of them in shared
// memory at once, codes by the copy engine. Its warps take slices, 256 of K of eight rows, in the
// order in which they come, and wait for each other only before the sums of the slices are added.
//
// 7.15 us at 5003 x 4368, bfloat16 and NVFP4, 7.0 in MXFP4; where a warp has one slice only
// gemv_slice_kernel.cuh is faster. Before it was there, at 5003 x 4112, 7.1 us for 8.6 of the
// ragged panels; 7.0 and 8.0 in MXFP4; reading alone takes 4.4. No better are copies by threads, 4
// bytes of scales at a time above all (9.0 to 11), the weight straight into registers, where x
// comes behind it (7.6), scales that multiply codes of one row along a warp, and rows of scales
// apart so that lanes meet no bank twice (7.4 where threads move them, 8.1 where the copy engine
// brings each).
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "fp4_matmul/gemv_x.cuh"
#include "fp4_matmul/opaque.cuh"
#include "fp4_matmul/quad.cuh"
#include "fp4_matmul/shared_words.cuh"

namespace my_ops {

// A warp's slices of all units.
template <typename Tile>
__device__ __forceinline__ void multiply_slices(const GemvBlock<Tile>& block, GemvStep<Tile>& step,
                                                bool lifted, float factor) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int unit = 0, slice = threadIdx.x / 32;
  // Of x, a lane takes what belongs to column g, if that is of its own codes.
  const uint32_t owner = opaque(g / 2 == t), first_lane = opaque(t == 0);
  constexpr int kLaneStep = Tile::kLaneStep, kPlaceStep = Tile::kPlaceStep;
  const uint32_t x = opaque(block.x + gemv_x_place((t * kLaneStep + g % 2 * kPlaceStep) / 8));
  uint32_t codes = block.codes_of(g) + t * kLaneStep / 2 + slice * 128;
  uint32_t scales =
      block.scales_of(g) + (slice * kGemvDepth + t * kLaneStep) / 32 * Tile::kVectorScales;
  const int shift = opaque(Tile::kInLine ? scales % 4 * 8 : 0);  // of all units
  if (Tile::kInLine) scales -= scales % 4;
  uint32_t to = block.sums + (g * block.sum_pitch + slice) * 4;
  // From behind the last slice of a unit to the first of the next.
  const int slices = opaque(block.slices);
  const int unit_codes = opaque(kGemvRows * block.pitch - slices * 128);
  const int unit_scales = opaque(kGemvRows * block.row_scales - slices * 8 * Tile::kVectorScales);
  const int unit_sums = opaque((kGemvRows * block.sum_pitch - slices) * 4);
#pragma unroll 1
  while (unit < block.units) {
    step.take_x(x + slice * 512, owner);
    sm90::wait_barrier(block.unit_barrier(unit), 0);
    if constexpr (Tile::kInLine) {
      step.take_in_line(codes, scales, shift);
    } else {
      step.take({{codes, codes + kPlaceStep / 2},
                 {scales, scales + kPlaceStep / 32 * Tile::kVectorScales}});
    }
    if constexpr (!Tile::kSmallTail) {
      const int left = block.K - slice * kGemvDepth - t * kLaneStep;
      step.end_row(0, left);
      step.end_row(1, left - kPlaceStep);
    }
    float products[2];
    step.multiply(products, lifted, factor);
    const float sum = sum_of_quad(products[0] + products[1]);
    if (first_lane) store_shared4(to, sum);
    slice += kGemvWarps;
    codes += kGemvWarps * 128;
    scales += kGemvWarps * 8 * Tile::kVectorScales;
    to += kGemvWarps * 4;
    if (slice >= slices) {
      slice -= slices;
      codes += unit_codes;
      scales += unit_scales;
      to += unit_sums;
      ++unit;
    }
  }
}

// What is left of K behind the slices, of 16 rows at a time: both places of mma are the same one,
// of two units. The last warps, which have the fewest slices, take it.
template <typename Tile>
__device__ __forceinline__ void multiply_tails(const GemvBlock<Tile>& block, GemvStep<Tile>& step,
                                               bool lifted, float factor) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int left = block.K - block.slices * kGemvDepth - t * 32;
#pragma unroll 1
  for (int first = 2 * (kGemvWarps - 1 - warp); first < block.units; first += 2 * kGemvWarps) {
    GemvAt at;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int unit = min(first + h, block.units - 1), row = unit * kGemvRows + g;
      at.codes[h] = block.codes_of(row) + block.slices * 128 + t * 16;
      at.scales[h] = block.scales_of(row) + (block.slices * 8 + t) * Tile::kVectorScales;
      sm90::wait_barrier(block.unit_barrier(unit), 0);
    }
    step.take_x(block.x + gemv_x_place((block.slices * 8 + t) * 4), g / 2 == t);
    step.take(at);
    step.end_row(0, left);
    step.end_row(1, left);
    float products[2];
    step.multiply(products, lifted, factor);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = sum_of_quad(products[h]);
      const int row = (first + h) * kGemvRows + g;
      if (t == 0 && first + h < block.units) {
        store_shared4(block.sums + (row * block.sum_pitch + block.slices) * 4, sum);
      }
    }
  }
}

// Eight lanes add up what the slices have of an element of y.
template <typename Tile>
__device__ __forceinline__ void store_gemv_sums(const GemvArguments& args,
                                                const GemvBlock<Tile>& block, const float* sums,
                                                float factor, float sum_factor) {
  const int parts = block.slices + (Tile::kSmallTail ? 1 : 0);
#pragma unroll 1
  for (int i = threadIdx.x; i < block.units * kGemvRows * 8; i += kGemvWarps * 32) {
    const int row = i / 8, e = i % 8;
    float sum = 0.0f;
    for (int part = e; part < parts; part += 8) sum += sums[row * block.sum_pitch + part];
    sum = sum_of_quad(sum);
    sum += __shfl_xor_sync(~0u, sum, 4);
    const int64_t n = int64_t{block.first_row} + row;
    if (e == 0 && row < block.rows) {
      store_element(args.out, 0, n, sum * factor * sum_factor + load_bias(args.out, n));
    }
  }
}

// Where the memory of two blocks fits on an SM, the next kernel's is there when this one ends.
template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(2 * kGemvWarps * 32) fp4_gemv_kernel(const GemvArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t shared[];
  auto& scale = *reinterpret_cast<FragmentScale*>(shared + kGemvFactorsAt);
  let_next_kernel_start();
  const GemvBlock<Tile> block(args, shared_address(shared));
  if (threadIdx.x <= block.units + 1) sm90::init_barrier(block.unit_barrier(threadIdx.x), 1);
  sm90::fence_barrier_init();
  __syncthreads();
  wait_for_previous_kernel();
  block.start_copies();
  // The factors of all sums, by a warp that has nothing else to do.
  if (threadIdx.x / 32 == kGemvWarps - 1) {
    const float amax = args.amax != nullptr ? *args.amax : 1.0f;
    using scalar_t = typename Tile::scalar_t;
    const FragmentScale of_all = args.amax == nullptr
                                     ? fragment_scale<scalar_t, Tile::kFormat>(nullptr)
                                     : fragment_scale<scalar_t, Tile::kFormat>(&amax);
    if (threadIdx.x % 32 == 0) scale = of_all;
  }
  sm90::wait_barrier(block.x_barrier(), 0);
  const bool lifted = order_gemv_x<Tile>(args, shared + kGemvBarrierBytes, block.x_bytes);
  const float factor = scale.scale_factor;
  sm90::wait_barrier(block.scale_barrier(), 0);
  GemvStep<Tile> step;
  multiply_slices(block, step, lifted, factor);
  if constexpr (Tile::kSmallTail) multiply_tails(block, step, lifted, factor);
  __syncthreads();
  store_gemv_sums(args, block,
                  reinterpret_cast<const float*>(shared + (block.sums - block.barriers)),
                  lifted ? StreamColumns<Tile>::tile_factor(factor) : 1.0f, scale.sum_factor);
#endif
}

}  // namespace my_ops
