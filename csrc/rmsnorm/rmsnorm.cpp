// rmsnorm: argument checks, allocation, choice of the device.
#include "rmsnorm/rmsnorm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "common/device.h"
#include "rmsnorm/rmsnorm_checks.h"

namespace my_ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// `tensor`, or a copy of it, in rows that the kernels can find.
at::Tensor with_dense_rows(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  RowLayout layout;
  bool fits = tensor.stride(-1) == 1 || tensor.size(-1) == 1;
  for (int64_t dim = tensor.dim() - 2; dim >= 0 && fits; --dim) {
    fits = layout.append(tensor.size(dim), tensor.stride(dim));
  }
  return fits ? tensor : tensor.contiguous();
}

// A dtype of y that the kernels write. Between 16-bit types y is float32 first: the same value
// before its one rounding.
at::ScalarType kernel_out_dtype(at::ScalarType out_dtype, at::ScalarType x_dtype) {
  const bool other_16_bit = is_16_bit(out_dtype) && is_16_bit(x_dtype) && out_dtype != x_dtype;
  return other_16_bit ? at::kFloat : out_dtype;
}

std::tuple<at::Tensor, at::Tensor> forward(const char* op, const at::Tensor& x,
                                           const OptionalTensor& residual,
                                           const OptionalTensor& weight, std::optional<double> eps,
                                           double weight_offset, bool round_before_weight,
                                           std::optional<std::string_view> out_dtype) {
  check_x(op, x);
  const at::ScalarType dtype = x.scalar_type();
  if (residual) {
    check_like_x(op, "residual", *residual, x);
    check_same_dtype(op, "residual", *residual, "x", x);
  }
  if (weight) check_weight(op, *weight, x);
  const at::ScalarType y_dtype = checked_out_dtype(op, out_dtype, dtype);
  RMSNormOptions options = checked_options(op, eps, weight_offset, dtype);
  options.round_before_weight = round_before_weight;
  const OperatorGuard guard(x);
  at::Tensor sum;
  if (residual) sum = at::empty(x.sizes(), x.options());
  auto y = at::empty(x.sizes(), x.options().dtype(kernel_out_dtype(y_dtype, dtype)));
  if (y.numel() > 0) {
    MY_OPS_CALL_ON_DEVICE_OF(x, rmsnorm_forward, with_dense_rows(x),
                             with_dense_rows(residual.value_or(at::Tensor())),
                             kernel_weight(weight.value_or(at::Tensor()), dtype), options, y, sum);
  }
  return {y.to(y_dtype), sum};
}

std::tuple<at::Tensor, at::Tensor> backward(const char* op, const at::Tensor& grad,
                                            const OptionalTensor& grad_sum, const at::Tensor& x,
                                            const OptionalTensor& weight, std::optional<double> eps,
                                            double weight_offset, bool want_x, bool want_weight) {
  check_x(op, x);
  check_grad(op, grad, x);
  if (grad_sum) {
    check_like_x(op, "grad_sum", *grad_sum, x);
    check_same_dtype(op, "grad_sum", *grad_sum, "x", x);
  }
  if (weight) check_weight(op, *weight, x);
  const RMSNormOptions options = checked_options(op, eps, weight_offset, x.scalar_type());
  const OperatorGuard guard(x);
  if (grad.scalar_type() != x.scalar_type()) {  // a forward with out_dtype: both widened
    const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
    auto [grad_x, grad_weight] =
        backward(op, wide(grad), grad_sum ? OptionalTensor(wide(*grad_sum)) : std::nullopt, wide(x),
                 weight, options.eps, weight_offset, want_x, want_weight);
    return {want_x ? grad_x.to(x.scalar_type()) : grad_x, grad_weight};
  }
  at::Tensor grad_x;
  at::Tensor grad_weight;
  const auto weight_or_none = kernel_weight(weight.value_or(at::Tensor()), x.scalar_type());
  if (want_x) grad_x = at::empty(x.sizes(), x.options());
  if (want_weight) grad_weight = at::empty(weight->sizes(), weight_or_none.options());
  if (x.numel() > 0) {
    MY_OPS_CALL_ON_DEVICE_OF(x, rmsnorm_backward, with_dense_rows(grad),
                             with_dense_rows(grad_sum.value_or(at::Tensor())), with_dense_rows(x),
                             weight_or_none, options, grad_x, grad_weight);
  } else if (want_weight) {
    grad_weight.zero_();
  }
  return {grad_x, want_weight ? grad_weight.to(weight->scalar_type()) : grad_weight};
}

}  // namespace

RowLayout row_layout(const TensorView& tensor) {
  RowLayout layout;
  for (int64_t dim = tensor.dim() - 2; dim >= 0; --dim) {
    layout.append(tensor.size(dim), tensor.stride(dim));
  }
  return layout;
}

at::Tensor rmsnorm_forward(const at::Tensor& x, const OptionalTensor& weight,
                           std::optional<double> eps, double weight_offset,
                           bool round_before_weight, std::optional<std::string_view> out_dtype) {
  return std::get<0>(forward("rmsnorm", x, std::nullopt, weight, eps, weight_offset,
                             round_before_weight, out_dtype));
}

std::tuple<at::Tensor, at::Tensor> add_rmsnorm_forward(
    const at::Tensor& x, const at::Tensor& residual, const OptionalTensor& weight,
    std::optional<double> eps, double weight_offset, bool round_before_weight,
    std::optional<std::string_view> out_dtype) {
  return forward("add_rmsnorm", x, residual, weight, eps, weight_offset, round_before_weight,
                 out_dtype);
}

std::tuple<at::Tensor, at::Tensor> rmsnorm_backward(const at::Tensor& grad,
                                                    const OptionalTensor& grad_sum,
                                                    const at::Tensor& x, const at::Tensor& weight,
                                                    std::optional<double> eps,
                                                    double weight_offset) {
  return backward("rmsnorm_backward", grad, grad_sum, x, weight, eps, weight_offset, true, true);
}

at::Tensor rmsnorm_backward_x(const at::Tensor& grad, const OptionalTensor& grad_sum,
                              const at::Tensor& x, const OptionalTensor& weight,
                              std::optional<double> eps, double weight_offset) {
  return std::get<0>(
      backward("rmsnorm_backward_x", grad, grad_sum, x, weight, eps, weight_offset, true, false));
}

at::Tensor rmsnorm_backward_weight(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& weight, std::optional<double> eps,
                                   double weight_offset) {
  return std::get<1>(backward("rmsnorm_backward_weight", grad, std::nullopt, x, weight, eps,
                              weight_offset, false, true));
}

}  // namespace my_ops
