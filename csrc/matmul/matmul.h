// Matrix product C = A B and its two gradients, which are products of the same kind:
//
//   matmul_forward      A [..., M, K], B [K, N]           -> C      [..., M, N]   A B
//   matmul_backward_A   grad [..., M, N], B [K, N]        -> grad_A [..., M, K]   grad B^T
//   matmul_backward_B   A [..., M, K], grad [..., M, N]   -> grad_B [K, N]        A^T grad
//
// float32 and float64, any strides. The result is a fresh contiguous tensor; K = 0 gives zeros.
// `precision` says how float32 is multiplied: "ieee" in float32 itself, the others on tensor cores.
#pragma once

#include <string_view>

#include "common/tensor_view.h"

namespace my_ops {

at::Tensor matmul_forward(const at::Tensor& A, const at::Tensor& B, std::string_view precision);
at::Tensor matmul_backward_A(const at::Tensor& grad, const at::Tensor& B,
                             std::string_view precision);
at::Tensor matmul_backward_B(const at::Tensor& A, const at::Tensor& grad,
                             std::string_view precision);

// C [M, N] = A [M, K] B [K, N], with M, N, K > 0 and C contiguous. On the CPU by torch's own
// matmul, which takes tensors.
void matmul_cpu(const at::Tensor& A, const at::Tensor& B, const at::Tensor& C,
                std::string_view precision);
void matmul_cuda(const TensorView& A, const TensorView& B, const TensorView& C,
                 std::string_view precision);

}  // namespace my_ops
