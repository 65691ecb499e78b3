// The products of fp4_matmul whose factor is stored along the dimension that is not contracted, on
// Hopper's tensor cores.
#pragma once

#include "fp4_matmul/fp4_product.h"

namespace my_ops {

// y = x * b + bias for a dense x of 16 bits. False where that was not done: the product is small,
// b is stored along the other dimension, x or b is not aligned, or the device has no wgmma.
//
// `misfits`, where it comes back defined, are int32 flags on the device; where one is not zero, b
// has scales that float16 cannot hold, and what y holds is not the product.
bool fp4_wide(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
              const TensorView& y, OwnedTensor& misfits);

// Two products that fp4_wide computes, with its bits. The second factor is widened on the SMs that
// the last round of the first product leaves idle, which takes memory for both: the gradients of
// n = 4096 take 357 us on an H200, one after the other 363. False, with nothing done, where another
// kernel is for one of them or its factor may misfit.
bool fp4_wide_two(const DenseProductView& first, const DenseProductView& second);

}  // namespace my_ops
