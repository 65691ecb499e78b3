// What turns the fused kernel's sums into results, of the global scales of the weight and of x.
// Device only, sm_90a, needs no torch.
//
// Its divisions and doubles are instructions that a block runs once, and to fetch them takes
// longer than to run them: where they stood in front of the consumers' loop, its first product
// came 1.2 us after x had. A warp that has nothing else to do makes it for all.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fused_store.cuh"

namespace my_ops {

template <typename Tile>
__device__ __forceinline__ ResultScale scale_of_results(const FusedArguments& args,
                                                        const Amaxes& amaxes) {
  using scalar_t = typename Tile::scalar_t;
  // Two calls each: a pointer that may be null would have the numbers lie in memory.
  const FragmentScale weight = args.amax == nullptr
                                   ? fragment_scale<scalar_t, Tile::kFormat>(nullptr)
                                   : fragment_scale<scalar_t, Tile::kFormat>(&amaxes.weight);
  float x_factor = 1.0f;
  if (args.x_is_nvfp4) {
    const FragmentScale of_x = args.x_amax == nullptr
                                   ? fragment_scale<__half, Fp4Format::nvfp4>(nullptr)
                                   : fragment_scale<__half, Fp4Format::nvfp4>(&amaxes.x);
    x_factor = of_x.sum_factor;
  }
  return result_scale(weight.sum_factor, x_factor);
}

// Of the warp that makes it.
template <typename Tile>
__device__ __forceinline__ void share_scale(const FusedArguments& args, uint32_t base) {
  wait_for_previous_kernel();
  Amaxes amaxes;
  amaxes.load(args);
  const ResultScale scale = scale_of_results<Tile>(args, amaxes);
  if (threadIdx.x % 32 == 0) {
    store_shared4(base + Tile::kScalePlace + 8, scale.first);
    store_shared4(base + Tile::kScalePlace + 12, scale.second);
    sm90::arrive(base + Tile::kScalePlace);
  }
  __syncwarp();  // the block's end waits for its cluster, as whole warps
}

// Of those that need it.
template <typename Tile>
__device__ __forceinline__ ResultScale shared_scale(uint32_t base) {
  sm90::wait_barrier(base + Tile::kScalePlace, 0);
  const uint2 numbers = load_shared8(base + Tile::kScalePlace + 8);
  return {bits_float(numbers.x), bits_float(numbers.y)};
}

}  // namespace my_ops
