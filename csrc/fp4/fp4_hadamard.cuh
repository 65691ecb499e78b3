// Device only: the Hadamard transform of fp4_hadamard.h along rows, in float32. Needs no torch.
//
// A thread owns a group of 16 elements. Neighbouring threads take neighbouring groups of a row, or
// neighbouring rows where these are the columns of a matrix in memory, as in the gradients that are
// transformed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/ceil_div.h"
#include "fp4/fp4_hadamard.h"
#include "fp4/fp4_launch.cuh"

namespace my_ops {

// Where rows are the columns of a matrix, a block takes 16 of them and 8 groups of each: 16
// elements of 16 bits are 32 bytes, the least that is read at a time, and more groups make longer
// runs that are written. 4096 rows of 8192 bfloat16 take 90 us; with 128 rows and one group 145,
// with 8 rows and 16 groups 100.
inline Fp4Launch fp4_hadamard_launch(const Fp4Rows& x) {
  const int64_t groups = ceil_div(x.K, int64_t{kHadamardPoints});
  if (x.k_stride == 1) return fp4_launch({x.rows, groups, groups}, 1, 1);
  return fp4_launch({groups, x.rows, x.rows}, 1, 1, 1, dim3(16, kFp4Threads / 16));
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// x [rows, K] to y [rows, groups, 16].
template <typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads)
    fp4_hadamard_kernel(const scalar_t* x, float* y, Fp4Rows shape) {
  const int64_t groups = (shape.K + kHadamardPoints - 1) / kHadamardPoints;
  const bool columns = shape.k_stride != 1;
  const int64_t across = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (across >= (columns ? shape.rows : groups)) return;

  for (int64_t down = int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
       down < (columns ? groups : shape.rows); down += int64_t{gridDim.y} * blockDim.y) {
    const int64_t row = columns ? across : down, group = columns ? down : across;
    const int64_t first_k = group * kHadamardPoints;
    const scalar_t* const from = x + row * shape.row_stride + first_k * shape.k_stride;

    // Load
    float elements[kHadamardPoints];
#pragma unroll
    for (int i = 0; i < kHadamardPoints; ++i) {
      const bool exists = first_k + i < shape.K;
      elements[i] = exists ? to_float(from[i * shape.k_stride]) : 0.0f;
    }

    hadamard_transform(elements);

    // Store
    float4* const to = reinterpret_cast<float4*>(y + (row * groups + group) * kHadamardPoints);
#pragma unroll
    for (int i = 0; i < kHadamardPoints / 4; ++i) {
      to[i] = make_float4(elements[4 * i], elements[4 * i + 1], elements[4 * i + 2],
                          elements[4 * i + 3]);
    }
  }
}

}  // namespace my_ops
