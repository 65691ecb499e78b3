// The part of matmul that multiplies float64. Host side of .cu files, needs no torch.
#pragma once

#include "common/tensor_view.h"

namespace my_ops {

// C [M, N] = A [M, K] B [K, N] in float64, with M, N, K > 0 and C contiguous.
void matmul_float64(const TensorView& A, const TensorView& B, const TensorView& C);

}  // namespace my_ops
