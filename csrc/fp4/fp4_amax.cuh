// Device: the largest magnitude of a tensor, NaN ignored. Needs no torch header.
//
// The maximum does not depend on the order, so atomics on the bits of non-negative floats, which
// order as integers do, give the same result in every run.
#pragma once

#include "fp4/fp4_launch.cuh"
#include "fp4/fp4_pack.cuh"

namespace my_ops {

template <bool kAligned, typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads)
    fp4_amax_kernel(const scalar_t* x,  // [rows, K], row_stride
                    uint32_t* amax,     // the bits of a float32, 0 before
                    Fp4Rows shape) {
  constexpr int kN = kVecElements<scalar_t>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;  // packs
  float largest = 0.0f;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < shape.rows;
       row += int64_t{gridDim.y} * blockDim.y) {
    const scalar_t* row_x = x + row * shape.row_stride;
    for (int64_t pack = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; pack * kN < shape.K;
         pack += step * kAmaxPacks) {
      uint32_t packs[kAmaxPacks][kVecBytes / 4];
#pragma unroll
      for (int p = 0; p < kAmaxPacks; ++p) {
        load_words<kAligned>(row_x, (pack + p * step) * kN, shape.K, packs[p]);
      }
#pragma unroll
      for (int p = 0; p < kAmaxPacks; ++p) {
        largest = fmaxf(largest, largest_magnitude<scalar_t, /*kKeepNaN=*/false>(packs[p]));
      }
    }
  }
  const uint32_t warp_largest = __reduce_max_sync(~0u, __float_as_uint(largest));
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  __shared__ uint32_t of_warp[kFp4Threads / 32];
  if (thread % 32 == 0) of_warp[thread / 32] = warp_largest;
  __syncthreads();
  if (thread < 32) {
    const uint32_t block_largest =
        __reduce_max_sync(~0u, thread < kFp4Threads / 32 ? of_warp[thread] : 0u);
    if (thread == 0) atomicMax(amax, block_largest);
  }
}

}  // namespace my_ops
