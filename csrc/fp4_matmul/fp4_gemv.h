// The product of fp4_linear for one row of x.
#pragma once

#include "fp4_matmul/fp4_product.h"

namespace my_ops {

// y = x * b + bias for one row of 16-bit x and a weight that is ragged (ragged_rows.h) or has rows
// of 4096, on Hopper. False, with nothing launched: more rows, a weight that shared memory does not
// hold, another layout.
bool fp4_gemv(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
              const TensorView& y);

}  // namespace my_ops
