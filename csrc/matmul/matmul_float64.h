// The part of matmul that multiplies float64. Included by matmul_cuda.cu.
#pragma once

#include <ATen/core/Tensor.h>

namespace my_ops {

// C [M, N] = A [M, K] B [K, N] in float64, with M, N, K > 0 and C contiguous.
void matmul_float64(const at::Tensor& A, const at::Tensor& B, const at::Tensor& C);

}  // namespace my_ops
