// Matrix product C = A B and its two gradients, which are products of the same kind:
//
//   matmul_forward      A [..., M, K], B [K, N]           -> C      [..., M, N]   A B
//   matmul_backward_A   grad [..., M, N], B [K, N]        -> grad_A [..., M, K]   grad B^T
//   matmul_backward_B   A [..., M, K], grad [..., M, N]   -> grad_B [K, N]        A^T grad
//
// float32 and float64, any strides. The result is a fresh contiguous tensor; K = 0 gives zeros.
// `precision` says how float32 is multiplied: "ieee" in float32 itself, the others on tensor cores.
//
// The CUDA kernels, in the order in which matmul_cuda asks; the first one that takes a product
// multiplies it:
//
//   of        kernel          takes                                                        GPU
//   float64   matvec.cuh      up to four rows or columns of C, where the larger operand    any
//                             is dense along one dimension
//             dmma_gemm.cuh   the rest, on tensor cores                                    any
//   float32   tf32_gemm.cuh   "tf32" where M, N and K are multiples of 4 and it is the     Hopper
//                             fastest by estimate (tf32_plan.h)
//             wgmma_gemm.cuh  "bf16x6", "fp16x3", "tf32" where it is faster than "ieee"    Hopper
//                             by estimate (wgmma_plan.h)
//             matvec.cuh      as in float64                                                any
//             simt_gemm.cuh   the rest                                                     any
//
// Operands that wgmma_gemm.cuh cannot split (an infinity, a NaN, too wide a range) are multiplied
// by a later launch: in "tf32" by wgmma_gemm.cuh, from planes of TF32, else by simt_gemm.cuh.
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
