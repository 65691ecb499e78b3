// The gradients of fp4_matmul: argument checks, allocation, choice of the device, registration.
#include "common/device.h"
#include "common/register.h"
#include "fp4_matmul/fp4_factor.h"
#include "fp4_matmul/fp4_matmul.h"

namespace my_ops {
namespace {

// A gradient and the product that computes it, whose y is a view of it.
struct Gradient {
  at::Tensor result;
  DenseProduct product;

  bool is_empty() const { return result.numel() == 0; }
  at::Tensor compute() {
    if (is_empty()) return result;
    const OperatorGuard guard(product.x);
    MY_OPS_CALL_ON_DEVICE_OF(product.x, fp4_matmul_dense, product.x, product.b, at::Tensor(),
                             product.y);
    return result;
  }
};

// grad_A = grad * Bq^T
Gradient gradient_of_a(const at::Tensor& grad, const PackedArgument& b,
                       const std::string& dtype_name) {
  const auto dtype = fp4_dtype_named(b.op, dtype_name);
  check_device(b.op, "b_packed", b.packed);
  check_dense(b.op, "grad", grad, "b_packed", b.packed);
  MY_OPS_CHECK(b.shape.size() == 2, b.op, "b_shape", "two dimensions", b.shape);
  b.check();
  MY_OPS_CHECK(grad.dim() >= 1 && grad.size(-1) == b.depth(), b.op, "grad",
               c10::str("as many columns as b has (", b.depth(), ")"), grad.sizes());

  const OperatorGuard guard(grad);
  auto grad_a = empty_product(grad.sizes(), b.outer(), grad, dtype);
  if (grad_a.numel() == 0) return {grad_a, {}};
  const auto matrix = grad_a.view({grad_a.numel() / b.outer(), b.outer()});
  return {grad_a, {as_matrix(grad), b.factor(), matrix}};
}

// grad_B = Aq^T * grad, computed as its transpose grad^T * Aq: the packed factor is the second.
// `matrix`: as_matrix(grad), if that is there already.
Gradient gradient_of_b(const at::Tensor& grad, const PackedArgument& a,
                       const std::string& dtype_name, const at::Tensor& matrix = {}) {
  const auto dtype = fp4_dtype_named(a.op, dtype_name);
  check_device(a.op, "a_packed", a.packed);
  check_dense(a.op, "grad", grad, "a_packed", a.packed);
  a.check();
  MY_OPS_CHECK(grad.dim() == static_cast<int64_t>(a.shape.size()) &&
                   grad.sizes().slice(0, grad.dim() - 1) == a.shape.slice(0, a.shape.size() - 1),
               a.op, "grad", c10::str("the leading dimensions of a_shape ", a.shape), grad.sizes());

  const OperatorGuard guard(grad);
  auto grad_b = at::empty({a.outer(), grad.size(-1)}, grad.options().dtype(dtype));
  if (grad_b.numel() == 0) return {grad_b, {}};
  return {grad_b, {(matrix.defined() ? matrix : as_matrix(grad)).t(), a.factor(), grad_b.t()}};
}

}  // namespace

at::Tensor fp4_matmul_backward_A(const at::Tensor& grad, const at::Tensor& b_packed,
                                 const at::Tensor& b_scale, const std::optional<at::Tensor>& b_amax,
                                 at::IntArrayRef b_shape, bool b_transposed,
                                 const std::string& format_name, const std::string& dtype_name) {
  constexpr const char* kOp = "fp4_matmul_backward_A";
  const auto format = fp4_format_named(kOp, format_name);
  return gradient_of_a(grad,
                       {kOp, "b", b_packed, b_scale, b_amax, b_shape, b_transposed, true, format},
                       dtype_name)
      .compute();
}

at::Tensor fp4_matmul_backward_B(const at::Tensor& a_packed, const at::Tensor& a_scale,
                                 const std::optional<at::Tensor>& a_amax, at::IntArrayRef a_shape,
                                 bool a_transposed, const at::Tensor& grad,
                                 const std::string& format_name, const std::string& dtype_name) {
  constexpr const char* kOp = "fp4_matmul_backward_B";
  const auto format = fp4_format_named(kOp, format_name);
  return gradient_of_b(grad,
                       {kOp, "a", a_packed, a_scale, a_amax, a_shape, a_transposed, false, format},
                       dtype_name)
      .compute();
}

std::tuple<at::Tensor, at::Tensor> fp4_matmul_pair_backward(
    const at::Tensor& grad, const at::Tensor& a_packed, const at::Tensor& a_scale,
    const std::optional<at::Tensor>& a_amax, at::IntArrayRef a_shape, bool a_transposed,
    const at::Tensor& b_packed, const at::Tensor& b_scale, const std::optional<at::Tensor>& b_amax,
    at::IntArrayRef b_shape, bool b_transposed, const std::string& format_name,
    const std::string& a_dtype_name, const std::string& b_dtype_name) {
  constexpr const char* kOp = "fp4_matmul_pair_backward";
  const auto format = fp4_format_named(kOp, format_name);
  auto of_a = gradient_of_a(
      grad, {kOp, "b", b_packed, b_scale, b_amax, b_shape, b_transposed, true, format},
      a_dtype_name);
  auto of_b = gradient_of_b(
      grad, {kOp, "a", a_packed, a_scale, a_amax, a_shape, a_transposed, false, format},
      b_dtype_name, of_a.product.x);
  if (of_a.is_empty() || of_b.is_empty()) return {of_a.compute(), of_b.compute()};
  const OperatorGuard guard(grad);
  MY_OPS_CALL_ON_DEVICE_OF(grad, fp4_matmul_dense_two, of_a.product, of_b.product);
  return {of_a.result, of_b.result};
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library,
            "fp4_matmul_backward_A(Tensor grad, Tensor b_packed, Tensor b_scale, Tensor? b_amax, "
            "SymInt[] b_shape, bool b_transposed, str format, str dtype) -> Tensor",
            &fp4_matmul_backward_A);
  define_op(library,
            "fp4_matmul_backward_B(Tensor a_packed, Tensor a_scale, Tensor? a_amax, "
            "SymInt[] a_shape, bool a_transposed, Tensor grad, str format, str dtype) -> Tensor",
            &fp4_matmul_backward_B);
  define_op(library,
            "fp4_matmul_pair_backward(Tensor grad, Tensor a_packed, Tensor a_scale, "
            "Tensor? a_amax, SymInt[] a_shape, bool a_transposed, Tensor b_packed, Tensor b_scale, "
            "Tensor? b_amax, SymInt[] b_shape, bool b_transposed, str format, str a_dtype, "
            "str b_dtype) -> (Tensor, Tensor)",
            &fp4_matmul_pair_backward);
}

}  // namespace my_ops
