// The product of fp4_matmul for few rows of x with a factor that is stored along the dimension that
// is not contracted: the gradient of fp4_linear.
#pragma once

#include "fp4_matmul/fp4_product.h"

namespace my_ops {

// y = x * b + bias for at most 64 rows of 16-bit x. False where that was not done: more rows, a
// small product, another layout, float16 x with MXFP4.
bool fp4_outer(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
               const TensorView& y);

}  // namespace my_ops
