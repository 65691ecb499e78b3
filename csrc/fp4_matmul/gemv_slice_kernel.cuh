// The gemv kernel where K is as many slices as a block has warps, and a small rest. Device only,
// sm_90a, needs no torch.
//
// Each warp has one slice of all rows, so x stays in its registers, and warps meet only before the
// sums of slices are added, when what is left of K is multiplied in float32. As two blocks fit on
// an SM, the next product's are there while this one is at work, and ask L2 for their part of the
// weight when the copies of this one have nearly come: earlier they delay them.
//
// 5.75 us at 5003 x 4112, bfloat16 and NVFP4, for 7.1 of the gemv kernel, 5.7 for 6.95 in MXFP4;
// 4.5 in both at 4096 x 4096 for 4.7 and 4.6 of box panels. With the weight in L2 it took 4.8 and
// 4.0, of which copies alone take 2.5. No faster: the weight from global memory straight into
// registers (5.8 to 6.2), rows in copies of their own (4.98 for 4.91), half of the units copied by
// threads (5.7), the sums of a unit finished while the next one is multiplied (6.8 for 6.15), the
// next kernel let in when a unit is there in place of a delay (4.6 to 6.7).
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "fp4_matmul/gemv_slice.cuh"

namespace my_ops {

// In one thread. Not if x is there before the time has come: then nothing is in front of the block.
template <typename Tile>
__device__ __forceinline__ void prefetch_later(const GemvBlock<Tile>& block, int ticks,
                                               int64_t begin) {
  while (clock64() - begin < ticks) {
    if (sm90::barrier_passed(block.x_barrier(), 0)) return;
  }
  block.prefetch();
}

// What sums of slices are without sum_factor, for codes under one block scale.
template <typename Tile>
__device__ __forceinline__ float gemv_rest_factor(uint32_t byte, float scale_factor) {
  if constexpr (Tile::kFormat == Fp4Format::mxfp4) return e8m0_decode(byte) * 0x1p-5f;
  constexpr bool kHalf = std::is_same_v<typename Tile::scalar_t, __half>;
  return e4m3_decode(byte) * (kHalf ? 0x1p-14f : scale_factor * 0x1p-126f);
}

// Of a row, what is left of K behind the slices: lane e of eight has two codes of every 16.
template <typename Tile>
__device__ __forceinline__ float gemv_rest(const GemvBlock<Tile>& block, int row, int e,
                                           float scale_factor) {
  const auto value = [](uint32_t code) {  // its bits are those of 2^-126 of it
    return bits_float((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
  };
  float sum = 0.0f;
#pragma unroll 1
  for (int k = block.slices * kGemvDepth + 2 * e; k < block.K; k += 16) {
    const uint32_t codes = load_shared_bytes<1>(block.codes_of(row) + k / 2);
    const uint32_t scale = load_shared_bytes<1>(block.scales_of(row) + k / Tile::kScaleBlock);
    const uint32_t pair = load_shared_bytes<4>(block.x + k * 2);
    float2 x = {bits_float(pair << 16), bits_float(pair & 0xFFFF0000u)};
    if constexpr (std::is_same_v<typename Tile::scalar_t, __half>) {
      x = __half22float2(reinterpret_cast<const __half2&>(pair));
    }
    // The scale multiplies codes, exactly: times six the largest x are infinite.
    const float factor = gemv_rest_factor<Tile>(scale, scale_factor);
    sum = fmaf(value(codes & 15u) * factor, x.x, sum);
    sum = fmaf(value(codes >> 4) * factor, x.y, sum);
  }
  return sum;
}

template <typename Tile, bool kAligned>
__global__ void MY_OPS_SM90_BLOCKS(2 * kGemvWarps * 32)
    fp4_gemv_slice_kernel(const GemvArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using scalar_t = typename Tile::scalar_t;
  extern __shared__ __align__(128) uint8_t shared[];
  auto& shared_scale = *reinterpret_cast<FragmentScale*>(shared + kGemvFactorsAt);
  auto* const shared_lifted = reinterpret_cast<int*>(shared + kGemvLiftedAt);
  let_next_kernel_start();
  const int64_t begin = clock64();
  const GemvBlock<Tile> block(args, shared_address(shared));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const bool last = blockIdx.x == gridDim.x - 1;
  const int last_unit = block.units - 1;
  if (const int i = threadIdx.x; i <= block.units + 1) {
    // What the copy engine leaves out of the last unit and of scales counts there too.
    const bool finished = last && (i == last_unit || i == block.units);
    sm90::init_barrier(block.unit_barrier(i), finished ? 1 + 32 : 1);
  }
  sm90::fence_barrier_init();
  __syncthreads();
  if (warp == 1 && sm90::elect_one()) prefetch_later(block, args.plan.prefetch_ticks, begin);
  __syncwarp();
  wait_for_previous_kernel();
  if (warp == kGemvWarps - 1 && sm90::elect_one()) block.start_copies_alone();
  if (last && warp == 0) {
    block.finish();
    // Each lane for what it wrote: racecheck does not follow an arrival of one for all.
    sm90::arrive(block.unit_barrier(last_unit));
    sm90::arrive(block.scale_barrier());
  }
  // The factors of all sums are for one warp to know, unless another cannot lift its x. amax as in
  // load_amax (panel_sums.cuh).
  const auto scale_of_all = [&] {
    if (args.amax == nullptr) return fragment_scale<scalar_t, Tile::kFormat>(nullptr);
    float amax;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(amax) : "l"(args.amax) : "memory");
    return fragment_scale<scalar_t, Tile::kFormat>(&amax);
  };
  if (warp == kGemvWarps - 2) {
    const FragmentScale scale = scale_of_all();
    if (lane == 0) shared_scale = scale;
  }
  GemvSlice<Tile, kAligned> slice(block, warp);
  sm90::wait_barrier(block.x_barrier(), 0);
  const bool lifted = slice.take_x();
  if (lane == 0) shared_lifted[warp] = lifted;
  sm90::wait_barrier(block.scale_barrier(), 0);
  lifted ? slice.multiply(true, 1.0f) : slice.multiply(false, scale_of_all().scale_factor);
  __syncthreads();

  const FragmentScale scale = shared_scale;
  const auto* const sums = reinterpret_cast<const float*>(shared + (block.sums - block.barriers));
  const int pitch = GemvSlice<Tile, kAligned>::sum_pitch(block);
#pragma unroll 1
  for (int i = threadIdx.x; i < block.units * kGemvRows * 8; i += kGemvWarps * 32) {
    const int row = i / 8, e = i % 8;
    float sum = 0.0f;
#pragma unroll
    for (int w = e; w < kGemvWarps; w += 8) {
      const float factor = StreamColumns<Tile>::tile_factor(scale.scale_factor);
      sum += sums[w * pitch + row] * (shared_lifted[w] ? factor : 1.0f);
    }
    if constexpr (!kAligned) sum += gemv_rest(block, row, e, scale.scale_factor);
    sum = sum_of_quad(sum);
    sum += __shfl_xor_sync(~0u, sum, 4);
    const int64_t n = int64_t{block.first_row} + row;
    if (e == 0 && row < block.rows) {
      store_element(args.out, 0, n, sum * scale.sum_factor + load_bias(args.out, n));
    }
  }
#endif
}

}  // namespace my_ops
