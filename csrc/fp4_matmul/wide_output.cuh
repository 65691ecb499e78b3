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

// first_n, first_m: where the block's tile begins.
template <typename Tile>
__device__ __forceinline__ void store_results(const WideArguments& args, uint32_t base, int warp,
                                              int first_n, int first_m, const ResultScale& scale,
                                              const float (&sums)[Tile::kAccumulators]) {
  const StripWriter writer(args.out, scale, first_n + warp * 16);
  if (args.boxes) {
    const uint32_t staging = base + Tile::kStaging + warp / 4 * kOutputStagingBytes;
    with_pair_type(args.out, [&](auto type) {
      const auto store = [&](auto along_n) {
        store_boxes<decltype(type), along_n.value>(args.y, writer, staging, warp,
                                                   first_n + warp / 4 * 64, first_m, sums);
      };
      args.out.col_stride == 1 ? store(std::true_type{}) : store(std::false_type{});
    });
  } else {
#pragma unroll
    for (int j = 0; j < Tile::kAccumulators; j += 4) {
      writer.store(first_m + 2 * j, {sums[j], sums[j + 1], sums[j + 2], sums[j + 3]});
    }
  }
}

}  // namespace my_ops
