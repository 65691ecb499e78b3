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
// Which kernel multiplies a dense x [M, K] by packed b [K, N] on CUDA: fp4_matmul_dense_cuda asks
// these launchers in turn, and each launches one of its kernels, the first here that takes the
// product, or answers false. b is stored along K (fp4_linear) or along N (gradients); "GPU" is the
// compute capability. Ragged: K is no multiple of 64 (NVFP4) or 128 (MXFP4), ragged_rows.h. All but
// the last take an x of 16 bits, and a b of 2^20 elements or more. The exact bounds, with the times
// behind them, are in the *_plan.h, at which multiples of bytes operands begin in the launchers.
//
//   launcher         kernel                 b  M      GPU   takes
//   fp4_gemv         gemv_slice_kernel.cuh  K  1      9.0   K = 4096, or ragged, below 4224
//                    gemv_kernel.cuh        K  1      9.0   ragged, K >= 4096, SMs hold b at once
//   fp4_stream       box_panel_kernel.cuh   K  <= 32  9.0   K % 256 == 0 (MXFP4: 512)
//                    stretch_kernel.cuh     K  3..16  9.0   ragged, 2048 <= K <= 5120
//                    ragged_kernel.cuh      K  <= 16  9.0   ragged, N <= 48 for each SM
//                    panel_kernel.cuh       K  <= 16  9.0   not ragged; M <= 8: K > 8192
//                    stream_kernel.cuh      K  <= 8   8.0+  any such M
//   fp4_outer        outer_kernel.cuh       N  <= 64  9.0+  N % 128 == 0; not float16 with MXFP4
//   fp4_fused_dense  fused_kernel.cuh       K  any    9.0   K % 16 == 0; decodes into registers
//   fp4_wide         wide_kernel.cuh        N  any    9.0   N % 8 == 0; widens b to 16 bits first
//   launch_product   fp4_matmul_kernel.cuh  *  any    8.0+  all else: float32, small, misaligned
//
// Float16 x with MXFP4: fp4_wide may set flags (fp4_misfits.cuh), and where one is set
// fp4_matmul_kernel computes the product again behind it. Two packed operands go to the fused
// kernel, else to the last; two dense ones of a large product are quantized together first
// (pair_kernel.cuh).
//
// Words of these files. Tokens: rows of x; group: eight of them. Rows, columns: of the weight as
// fp4_linear has it, [N, K]. Step: the part of K that a warp takes at a time, and slot: where it
// lies in shared memory; stage: the same of x. Panel: some rows of the weight, all of K. Box: what
// the copy engine brings by a tensor map. Stretch: ragged rows as one run of bytes. Image: x in the
// order of decoded codes, where "natural" is its own. Splits: blocks of a cluster that divide K;
// parts: clusters that do, by mail. Sharers: blocks of a cluster with the same x. Work: a tile or a
// part of its K. Misfit: an E8M0 scale beyond 16 bits; missing: what is added for it.
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
