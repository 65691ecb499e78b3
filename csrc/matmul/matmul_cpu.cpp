// matmul on the CPU: at::mm, made to mean what our precisions promise whatever torch's global
// switches say. Every precision is at least float32 here, which keeps each one's promise.
#include <ATen/Context.h>
#include <ATen/ops/mm.h>

#include "matmul/matmul.h"

namespace my_ops {
namespace {

// torch.set_float32_matmul_precision and its relatives let at::mm round float32 operands to
// bfloat16 or TF32 on CPUs that have the instructions.
bool torch_may_round_float32() {
  const auto precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision == at::Float32Precision::BF16 || precision == at::Float32Precision::TF32;
}

}  // namespace

void matmul_cpu(const at::Tensor& A, const at::Tensor& B, const at::Tensor& C, std::string_view) {
  at::Tensor out = C;
  if (A.scalar_type() == at::kFloat && torch_may_round_float32()) {
    // float64 is never rounded, and asking for it changes no state that other threads see.
    out.copy_(at::mm(A.to(at::kDouble), B.to(at::kDouble)));
  } else {
    at::mm_out(out, A, B);
  }
}

}  // namespace my_ops
