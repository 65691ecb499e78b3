// The part of matmul that multiplies float32 operands in TF32 as they lie in memory. Host side of
// .cu files, needs no torch.
#pragma once

#include "common/tensor_view.h"
#include "matmul/tf32_plan.h"

namespace my_ops {

// float32 C = A B by a plan that says how. False where that was not done, as the device cannot.
bool matmul_tf32(const TensorView& A, const TensorView& B, const TensorView& C,
                 const Tf32Plan& plan);

}  // namespace my_ops
