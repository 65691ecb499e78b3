// fp4_matmul and fp4_linear: products with FP4 operands, and their gradients.
//
//   fp4_matmul   y  = Aq * Bq         grad_A = grad * Bq^T,   grad_B = Aq^T * grad
//   fp4_linear   y  = x * Wq^T + bias   grad_x = grad * Wq      (fp4_matmul_backward_A of Wq^T)
//
// Aq [..., M, K], Bq [K, N], Wq [N, K] are the values of packed operands (fp4/fp4.h); an operand
// with `transposed` is stored as its transpose, so that B and W usually have the same bytes. x,
// grad and bias are float32, float16 or bfloat16 in any layout. Sums are float32 on CUDA and on the
// CPU; a result is rounded once, to the dtype that is asked for.
//
// Kernels on CUDA. Any product: fp4_matmul_kernel.cuh. A second factor with at least 2^20 elements
// that is stored along the contracted dimension: stream_kernel.cuh for up to 8 rows of 16 bits,
// on Hopper box_panel_kernel.cuh for up to 32, panel_kernel.cuh for up to 16 where K is short or
// the copy engine cannot read the weight, and for few with a long K; where rows are ragged,
// gemv_kernel.cuh for one, gemv_slice_kernel.cuh for one where K is 4096 or little more, which also
// need not be ragged, ragged_kernel.cuh and stretch_kernel.cuh for up to 16; and fused_kernel.cuh
// for more, and for FP4 x. One that is stored along the other, as the gradients' are:
// outer_kernel.cuh for few rows, wide_kernel.cuh on Hopper for more, both of 16 bits. Two dense
// operands of a large product are quantized together there, by pair_kernel.cuh.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

#include "fp4_matmul/fp4_product.h"

namespace my_ops {

// The operators: checks, allocation, choice of the device (fp4_matmul.cpp, fp4_gradients.cpp,
// fp4_pair.cpp). Shapes are logical.
at::Tensor fp4_matmul_forward(const at::Tensor& a_packed, const at::Tensor& a_scale,
                              const std::optional<at::Tensor>& a_amax, at::IntArrayRef a_shape,
                              bool a_transposed, const at::Tensor& b_packed,
                              const at::Tensor& b_scale, const std::optional<at::Tensor>& b_amax,
                              at::IntArrayRef b_shape, bool b_transposed, const std::string& format,
                              const std::string& dtype);
// Of two dense operands, which it quantizes first: y, then codes, scales and amax of a and of b
// (its transpose). In MXFP4 an amax has no elements (fp4_pair.cpp).
using PairResults =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
PairResults fp4_matmul_pair_forward(const at::Tensor& a, const at::Tensor& b,
                                    const std::string& format, const std::string& dtype);
at::Tensor fp4_matmul_backward_A(const at::Tensor& grad, const at::Tensor& b_packed,
                                 const at::Tensor& b_scale, const std::optional<at::Tensor>& b_amax,
                                 at::IntArrayRef b_shape, bool b_transposed,
                                 const std::string& format, const std::string& dtype);
at::Tensor fp4_matmul_backward_B(const at::Tensor& a_packed, const at::Tensor& a_scale,
                                 const std::optional<at::Tensor>& a_amax, at::IntArrayRef a_shape,
                                 bool a_transposed, const at::Tensor& grad,
                                 const std::string& format, const std::string& dtype);
// Both: grad_A of `a_dtype` and grad_B, with the bits of the two operators.
std::tuple<at::Tensor, at::Tensor> fp4_matmul_pair_backward(
    const at::Tensor& grad, const at::Tensor& a_packed, const at::Tensor& a_scale,
    const std::optional<at::Tensor>& a_amax, at::IntArrayRef a_shape, bool a_transposed,
    const at::Tensor& b_packed, const at::Tensor& b_scale, const std::optional<at::Tensor>& b_amax,
    at::IntArrayRef b_shape, bool b_transposed, const std::string& format,
    const std::string& a_dtype, const std::string& b_dtype);
at::Tensor fp4_linear_forward(const at::Tensor& x, const at::Tensor& weight_packed,
                              const at::Tensor& weight_scale,
                              const std::optional<at::Tensor>& weight_amax,
                              at::IntArrayRef weight_shape, bool weight_transposed,
                              const std::optional<at::Tensor>& bias, const std::string& format);

}  // namespace my_ops
