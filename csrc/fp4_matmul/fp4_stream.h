// The product of fp4_linear for few rows of x.
#pragma once

#include "fp4_matmul/fp4_product.h"

namespace my_ops {

// y = x * b + bias for at most 8 rows of 16-bit x by the stream kernel, on Hopper at most 32 by
// those that take panels. False, with nothing launched: more rows, a small product, another layout.
bool fp4_stream(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
                const TensorView& y);

}  // namespace my_ops
