// The product of fp4_linear for few rows of x. Included by fp4_matmul_cuda.cu.
#pragma once

#include <ATen/core/Tensor.h>

#include "fp4_matmul/fp4_matmul.h"

namespace my_ops {

// y = x * b + bias for at most 8 rows of 16-bit x. False where that was not done: more rows, a
// small product, another layout.
bool fp4_stream(const at::Tensor& x, const Fp4Factor& b, const std::optional<at::Tensor>& bias,
                const at::Tensor& y);

}  // namespace my_ops
