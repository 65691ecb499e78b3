// square: y = x * x, elementwise; grad_x = 2 * grad * conj(x).
//
// x     any shape and any dtype that torch.square takes
// y     the shape and memory format of x; int64 for bool, else the dtype of x
// grad  the shape and dtype of x, any strides
//
// 16-bit types are computed in float32 and rounded once; integers wrap.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

// The dtypes of the kernels, for CPU and CUDA alike.
#define SQUARE_DISPATCH(dtype, ...) \
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(at::kHalf, at::kBFloat16, dtype, "square", __VA_ARGS__)
#define SQUARE_DISPATCH_DIFFERENTIABLE(dtype, ...)                                                \
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "square_backward", \
                                              __VA_ARGS__)

namespace my_ops {

// The operators: checks, allocation, choice of the device (square.cpp).
at::Tensor square_forward(const at::Tensor& x);
void square_inplace(at::Tensor& x);
at::Tensor square_backward(const at::Tensor& grad, const at::Tensor& x);

// The kernels. All tensors are dense and have equal strides; `y` may be `x`.
void square_forward_cpu(const at::Tensor& x, at::Tensor& y);
void square_forward_cuda(const at::Tensor& x, at::Tensor& y);
void square_backward_cpu(const at::Tensor& grad, const at::Tensor& x, at::Tensor& grad_x);
void square_backward_cuda(const at::Tensor& grad, const at::Tensor& x, at::Tensor& grad_x);

}  // namespace my_ops
