// matmul: argument checks, allocation, choice of the device, registration.
#include "matmul/matmul.h"

#include <ATen/ops/empty.h>

#include "common/checks.h"
#include "common/device.h"
#include "common/last_dimension.h"
#include "common/register.h"

namespace my_ops {
namespace {

void check_precision(const char* op, std::string_view precision) {
  MY_OPS_CHECK(
      precision == "ieee" || precision == "bf16x6" || precision == "fp16x3" || precision == "tf32",
      op, "precision", "\"ieee\", \"bf16x6\", \"fp16x3\" or \"tf32\"", "\"", precision, "\"");
}

// `name_a` and `name_b` are the names that the two operands have in `op`.
void check_operands(const char* op, const char* name_a, const at::Tensor& a, const char* name_b,
                    const at::Tensor& b) {
  check_device(op, name_a, a);
  check_same_device(op, name_b, b, name_a, a);
  MY_OPS_CHECK(a.scalar_type() == at::kFloat || a.scalar_type() == at::kDouble, op, name_a,
               "dtype float32 or float64", a.scalar_type());
  check_same_dtype(op, name_b, b, name_a, a);
}

void check_matrix(const char* op, const char* name, const at::Tensor& matrix) {
  MY_OPS_CHECK(matrix.dim() == 2, op, name, "2 dimensions", "shape ", matrix.sizes());
}

void check_rows(const char* op, const char* name, const at::Tensor& rows) {
  MY_OPS_CHECK(rows.dim() >= 1, op, name, "at least 1 dimension", "shape ", rows.sizes());
}

at::IntArrayRef leading_sizes(const at::Tensor& x) { return x.sizes().slice(0, x.dim() - 1); }

// A [M, K] times B [K, N] as a tensor of `shape`.
at::Tensor product(const at::Tensor& A, const at::Tensor& B, at::IntArrayRef shape,
                   std::string_view precision) {
  at::Tensor C = at::empty(shape, A.options());
  if (C.numel() == 0) return C;
  if (A.size(1) == 0) return C.zero_();
  MY_OPS_CALL_ON_DEVICE_OF(A, matmul, A, B, C.view({A.size(0), B.size(1)}), precision);
  return C;
}

}  // namespace

at::Tensor matmul_forward(const at::Tensor& A, const at::Tensor& B, std::string_view precision) {
  const char* const op = "matmul";
  check_precision(op, precision);
  check_operands(op, "a", A, "b", B);
  check_rows(op, "a", A);
  check_matrix(op, "b", B);
  MY_OPS_CHECK(A.size(-1) == B.size(0), op, "b",
               c10::str("a's last dimension as its first: [", A.size(-1), ", N]"), "shape ",
               B.sizes());
  const OperatorGuard guard(A);
  return product(flatten_rows(A), B, with_last(A.sizes(), B.size(1)), precision);
}

at::Tensor matmul_backward_A(const at::Tensor& grad, const at::Tensor& B,
                             std::string_view precision) {
  const char* const op = "matmul_backward_A";
  check_precision(op, precision);
  check_operands(op, "grad", grad, "b", B);
  check_rows(op, "grad", grad);
  check_matrix(op, "b", B);
  MY_OPS_CHECK(grad.size(-1) == B.size(1), op, "grad",
               c10::str("b's last dimension as its own: [..., ", B.size(1), "]"), "shape ",
               grad.sizes());
  const OperatorGuard guard(grad);
  return product(flatten_rows(grad), B.t(), with_last(grad.sizes(), B.size(0)), precision);
}

at::Tensor matmul_backward_B(const at::Tensor& A, const at::Tensor& grad,
                             std::string_view precision) {
  const char* const op = "matmul_backward_B";
  check_precision(op, precision);
  check_operands(op, "a", A, "grad", grad);
  check_rows(op, "a", A);
  check_rows(op, "grad", grad);
  MY_OPS_CHECK(leading_sizes(grad) == leading_sizes(A), op, "grad",
               c10::str("the leading dimensions of a (", leading_sizes(A), ")"), "shape ",
               grad.sizes());
  const OperatorGuard guard(A);
  return product(flatten_rows(A).t(), flatten_rows(grad), {A.size(-1), grad.size(-1)}, precision);
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library, "matmul_forward(Tensor A, Tensor B, str precision) -> Tensor",
            &matmul_forward);
  define_op(library, "matmul_backward_A(Tensor grad, Tensor B, str precision) -> Tensor",
            &matmul_backward_A);
  define_op(library, "matmul_backward_B(Tensor A, Tensor grad, str precision) -> Tensor",
            &matmul_backward_B);
}

}  // namespace my_ops
