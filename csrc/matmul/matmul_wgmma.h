// The part of matmul that runs on Hopper's tensor cores. Host side of .cu files, needs no torch.
#pragma once

#include <string_view>

#include "common/tensor_view.h"

namespace my_ops {

// float32 C = A B in one of the tensor-core precisions. False where that was not done: "ieee" is
// asked for or is faster for this shape, or the device has no wgmma.
//
// `unfit`, where it comes back defined, is an int32 flag on the device. The kernels set it if an
// operand holds something that splitting would spoil (an infinity, a NaN), and then do not write C.
bool matmul_wgmma(const TensorView& A, const TensorView& B, const TensorView& C,
                  std::string_view precision, OwnedTensor& unfit);

}  // namespace my_ops
