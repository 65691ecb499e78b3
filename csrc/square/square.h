// square: y = x * x, elementwise; grad_x = 2 * grad * conj(x).
//
// x     any shape and any dtype that torch.square takes
// y     the shape and memory format of x; int64 for bool, else the dtype of x
// grad  the shape and dtype of x, any strides
//
// 16-bit types are computed in float32 and rounded once; integers wrap.
#pragma once

#include "common/dispatch.h"
#include "common/tensor_view.h"

namespace my_ops {

// The dtypes that the kernels exist for, on the CPU and on CUDA alike.
using SquareFloats =
    Types<float, double, c10::Half, c10::BFloat16, c10::complex<float>, c10::complex<double>>;
using SquareTypes = Types<uint8_t, int8_t, int16_t, int32_t, int64_t, float, double, c10::Half,
                          c10::BFloat16, c10::complex<float>, c10::complex<double>>;

// The operators: checks, allocation, choice of the device (square.cpp).
at::Tensor square_forward(const at::Tensor& x);
void square_inplace(at::Tensor& x);
at::Tensor square_backward(const at::Tensor& grad, const at::Tensor& x);

// The kernels. All tensors are dense and have equal strides; `y` may be `x`.
void square_forward_cpu(const TensorView& x, const TensorView& y);
void square_forward_cuda(const TensorView& x, const TensorView& y);
void square_backward_cpu(const TensorView& grad, const TensorView& x, const TensorView& grad_x);
void square_backward_cuda(const TensorView& grad, const TensorView& x, const TensorView& grad_x);

}  // namespace my_ops
