// The products that the fused kernel computes (fused_kernel.cuh), on Hopper.
#pragma once

#include <functional>

#include "fp4_matmul/fp4_product.h"

namespace my_ops {

// y = x * b + bias for a dense x of 16 bits. False where that was not done: the product is small,
// its layout is another, or the device has no wgmma.
bool fp4_fused_dense(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
                     const TensorView& y);

// The same for an FP4 x. `write(rows)`, where it is given, launches what writes x and b, and x in
// 16 bits to `rows`. False, with nothing launched, also where x does not come in that way.
bool fp4_fused_packed(const Fp4FactorView& x, const Fp4FactorView& b, const TensorView& y,
                      const std::function<void(void* rows)>& write = nullptr);

}  // namespace my_ops
