// The end of a tile of the wide kernel: sums become results. Device only, sm_90a, needs no torch.
#pragma once

#include "fp4_matmul/fused_store.cuh"
#include "fp4_matmul/wide_tile.cuh"

namespace my_ops {

// What turns sums of the widened factor's products into results. bfloat16 holds MXFP4's values
// themselves (widen_kernel.cuh).
template <typename scalar_t>
__device__ __forceinline__ float sum_factor(const WideArguments& args) {
  if (args.is_nvfp4) return fragment_scale<scalar_t, Fp4Format::nvfp4>(args.amax).sum_factor;
  if (std::is_same_v<scalar_t, __nv_bfloat16>) return 1.0f;
  return fragment_scale<scalar_t, Fp4Format::mxfp4>(args.amax).sum_factor;
}

template <typename Tile, typename result_t, bool kAlongN>
__device__ __forceinline__ void store_tile(const StripWriter& writer, int64_t first_m,
                                           const float (&sums)[Tile::kAccumulators]) {
#pragma unroll
  for (int j = 0; j < Tile::kAccumulators; j += 8) {
    const float4 strips[] = {{sums[j], sums[j + 1], sums[j + 2], sums[j + 3]},
                             {sums[j + 4], sums[j + 5], sums[j + 6], sums[j + 7]}};
    store_vectors<result_t, kAlongN>(writer, first_m + 2 * j, 8, strips);
  }
}

template <typename Tile>
__device__ __forceinline__ void store_results(const WideArguments& args, int first_n,
                                              int64_t first_m, const ResultScale& scale,
                                              const float (&sums)[Tile::kAccumulators]) {
  const StripWriter writer(args.out, scale, first_n);
  const bool half = args.out.type == DenseType::float16, along_n = args.out.col_stride == 1;
  if (args.vectors && half) {
    along_n ? store_tile<Tile, __half, true>(writer, first_m, sums)
            : store_tile<Tile, __half, false>(writer, first_m, sums);
  } else if (args.vectors) {
    along_n ? store_tile<Tile, __nv_bfloat16, true>(writer, first_m, sums)
            : store_tile<Tile, __nv_bfloat16, false>(writer, first_m, sums);
  } else {
#pragma unroll
    for (int j = 0; j < Tile::kAccumulators; j += 4) {
      writer.store(first_m + 2 * j, {sums[j], sums[j + 1], sums[j + 2], sums[j + 3]});
    }
  }
}

}  // namespace my_ops
