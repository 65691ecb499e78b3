// rmsnorm: y = x * rstd * (weight + weight_offset), rstd = 1 / sqrt(mean(x^2) + eps), over the last
// dimension; add_rmsnorm: the same of x + residual, which it returns too.
//
// x              [..., H], float16, bfloat16, float32 or float64; any strides
// residual       the shape and dtype of x
// weight         [H], any of these dtypes (float64 only with a float64 x); absent: no product
// eps            absent: the machine epsilon of float32, of float64 for a float64 x
// y              [..., H] contiguous, x's dtype or `out_dtype`
//
// Backward, with a = grad * (weight + weight_offset), adding grad_sum where the sum has a gradient:
//   grad_x      = rstd * (a - x * rstd * mean(a * x * rstd)) + grad_sum
//   grad_weight = sum over rows of grad * x * rstd
//
// The CUDA kernels, in the order in which forward_config.cuh and backward_config.cuh ask for the
// width of a row. "Packs": the width is a multiple of 16 bytes, and the dtype is not float64.
//
//   kernel                      takes                                        compute capability
//   forward_kernel.cuh          packs of up to 32 KB; without packs up to    any
//                               12288 columns for each block of a cluster
//   forward_tiles_kernel.cuh    packs over 512 KB, if the rings of all       9, 10
//                               multiprocessors hold two rows
//   forward_staged_kernel.cuh   packs, if a cluster's shared memory holds    9, 10, 12
//                               a row
//   forward_kernel.cuh          the rest: packs of up to 64 KB, others in    any
//                               two launches
//
//   backward_kernel.cuh         packs of up to 16 KB; all without packs,     any
//                               the widest in two launches
//   backward_wide_kernel.cuh    packs, if a cluster's rings hold three rows  9, 10, 12
//   backward_widest_kernel.cuh  float32 of up to 1 MB that these do not hold 9, 10
//   backward_kernel.cuh         the rest, in two launches                    any
//   weight_gradient.cuh         grad_weight, from the sums of the blocks     any
#pragma once

#include <optional>
#include <string_view>
#include <tuple>

#include "common/tensor_view.h"
#include "rmsnorm/row_layout.h"

namespace my_ops {

// The operators: checks, allocation, choice of the device (rmsnorm.cpp). `round_before_weight`
// rounds x * rstd to x's dtype before the product, as Hugging Face's Llama does.
at::Tensor rmsnorm_forward(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                           std::optional<double> eps, double weight_offset,
                           bool round_before_weight, std::optional<std::string_view> out_dtype);
std::tuple<at::Tensor, at::Tensor> add_rmsnorm_forward(
    const at::Tensor& x, const at::Tensor& residual, const std::optional<at::Tensor>& weight,
    std::optional<double> eps, double weight_offset, bool round_before_weight,
    std::optional<std::string_view> out_dtype);
std::tuple<at::Tensor, at::Tensor> rmsnorm_backward(const at::Tensor& grad,
                                                    const std::optional<at::Tensor>& grad_sum,
                                                    const at::Tensor& x, const at::Tensor& weight,
                                                    std::optional<double> eps,
                                                    double weight_offset);
at::Tensor rmsnorm_backward_x(const at::Tensor& grad, const std::optional<at::Tensor>& grad_sum,
                              const at::Tensor& x, const std::optional<at::Tensor>& weight,
                              std::optional<double> eps, double weight_offset);
at::Tensor rmsnorm_backward_weight(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& weight, std::optional<double> eps,
                                   double weight_offset);

// The kernels. Undefined tensors are absent arguments or unwanted results; nothing is empty.
//   x, residual, grad, grad_sum  of one dtype, dense in the last dimension, at most
//                                RowLayout::kMaxDims merged dimensions before it
//   weight, grad_weight          dense, of x's dtype or, for a 16-bit x, float32
//   y                            dense, of x's dtype; float32 for a 16-bit x or 16 bits for float32
//   sum, grad_x                  dense, of x's dtype
struct RMSNormOptions {
  double eps;
  double weight_offset = 0;
  bool round_before_weight = false;
};
void rmsnorm_forward_cpu(const TensorView& x, const TensorView& residual, const TensorView& weight,
                         const RMSNormOptions& options, const TensorView& y, const TensorView& sum);
void rmsnorm_forward_cuda(const TensorView& x, const TensorView& residual, const TensorView& weight,
                          const RMSNormOptions& options, const TensorView& y,
                          const TensorView& sum);
void rmsnorm_backward_cpu(const TensorView& grad, const TensorView& grad_sum, const TensorView& x,
                          const TensorView& weight, const RMSNormOptions& options,
                          const TensorView& grad_x, const TensorView& grad_weight);
void rmsnorm_backward_cuda(const TensorView& grad, const TensorView& grad_sum, const TensorView& x,
                           const TensorView& weight, const RMSNormOptions& options,
                           const TensorView& grad_x, const TensorView& grad_weight);

// Where the rows of a tensor start, all dimensions but the last merged as far as they can be.
RowLayout row_layout(const TensorView& tensor);

}  // namespace my_ops
