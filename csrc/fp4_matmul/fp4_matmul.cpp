// fp4_matmul, fp4_linear: argument checks, allocation, choice of the device, registration.
#include "fp4_matmul/fp4_matmul.h"

#include "common/device.h"
#include "common/register.h"
#include "fp4_matmul/fp4_factor.h"

namespace my_ops {

at::Tensor fp4_matmul_forward(const at::Tensor& a_packed, const at::Tensor& a_scale,
                              const std::optional<at::Tensor>& a_amax, at::IntArrayRef a_shape,
                              bool a_transposed, const at::Tensor& b_packed,
                              const at::Tensor& b_scale, const std::optional<at::Tensor>& b_amax,
                              at::IntArrayRef b_shape, bool b_transposed,
                              const std::string& format_name, const std::string& dtype_name) {
  constexpr const char* kOp = "fp4_matmul";
  const auto format = fp4_format_named(kOp, format_name);
  const auto dtype = fp4_dtype_named(kOp, dtype_name);
  check_device(kOp, "a_packed", a_packed);
  check_same_device(kOp, "b_packed", b_packed, "a_packed", a_packed);
  const PackedArgument a{kOp, "a", a_packed, a_scale, a_amax, a_shape, a_transposed, true, format};
  const PackedArgument b{kOp, "b", b_packed, b_scale, b_amax, b_shape, b_transposed, false, format};
  a.check();
  MY_OPS_CHECK(b_shape.size() == 2, kOp, "b_shape", "two dimensions", b_shape);
  b.check();
  MY_OPS_CHECK(a.depth() == b.depth(), kOp, "b_shape",
               c10::str("as many rows as a has columns (", a.depth(), ")"), b_shape);

  const OperatorGuard guard(a_packed);
  auto y = empty_product(a_shape, b.outer(), a_packed, dtype);
  if (y.numel() == 0) return y;
  auto matrix = y.view({a.outer(), b.outer()});
  MY_OPS_CALL_ON_DEVICE_OF(y, fp4_matmul_packed, a.factor(), b.factor(), matrix);
  return y;
}

at::Tensor fp4_linear_forward(const at::Tensor& x, const at::Tensor& weight_packed,
                              const at::Tensor& weight_scale,
                              const std::optional<at::Tensor>& weight_amax,
                              at::IntArrayRef weight_shape, bool weight_transposed,
                              const std::optional<at::Tensor>& bias,
                              const std::string& format_name) {
  constexpr const char* kOp = "fp4_linear";
  const auto format = fp4_format_named(kOp, format_name);
  check_device(kOp, "weight_packed", weight_packed);
  check_dense(kOp, "x", x, "weight_packed", weight_packed);
  MY_OPS_CHECK(weight_shape.size() == 2, kOp, "weight_shape", "two dimensions", weight_shape);
  const PackedArgument weight{kOp,         "weight",     weight_packed,     weight_scale,
                              weight_amax, weight_shape, weight_transposed, true,
                              format};
  weight.check();
  MY_OPS_CHECK(x.dim() >= 1 && x.size(-1) == weight.depth(), kOp, "x",
               c10::str("as many columns as weight has (", weight.depth(), ")"), x.sizes());
  if (bias) {
    check_dense(kOp, "bias", *bias, "x", x);
    MY_OPS_CHECK(bias->dim() == 1 && bias->size(0) == weight.outer(), kOp, "bias",
                 c10::str("the shape [", weight.outer(), "]"), bias->sizes());
  }

  const OperatorGuard guard(x);
  auto y = empty_product(x.sizes(), weight.outer(), x, x.scalar_type());
  if (y.numel() == 0) return y;
  auto matrix = y.view({y.numel() / weight.outer(), weight.outer()});
  const auto dense_bias = bias ? bias->contiguous() : at::Tensor();
  MY_OPS_CALL_ON_DEVICE_OF(x, fp4_matmul_dense, as_matrix(x), weight.factor(), dense_bias, matrix);
  return y;
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library,
            "fp4_matmul_forward(Tensor a_packed, Tensor a_scale, Tensor? a_amax, SymInt[] a_shape, "
            "bool a_transposed, Tensor b_packed, Tensor b_scale, Tensor? b_amax, SymInt[] b_shape, "
            "bool b_transposed, str format, str dtype) -> Tensor",
            &fp4_matmul_forward);
  define_op(library,
            "fp4_linear_forward(Tensor x, Tensor weight_packed, Tensor weight_scale, "
            "Tensor? weight_amax, SymInt[] weight_shape, bool weight_transposed, Tensor? bias, "
            "str format) -> Tensor",
            &fp4_linear_forward);
}

}  // namespace my_ops
