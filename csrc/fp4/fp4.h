// fp4_quantize, fp4_dequantize: a tensor [..., K] to and from the formats of common/fp4.h.
//
//   amax         = max |x|, NaN ignored                                      (NVFP4, two levels)
//   scale[b]     = E4M3(max |x in block b| * S / 6)                          (NVFP4)
//                  S = 2688 / amax; with one level S = 1
//                = E8M0 of max |x in block b| by scale_mode                  (MXFP4)
//   code[k]      = E2M1(x[k] / (scale[b] / S))
//   value[k]     = code[k] * (scale[b] / S)
//
// x       [..., K]               float32, float16 or bfloat16, any strides
// packed  [..., ceil(K / 2)]     uint8, the even element in the low nibble
// scale   [..., ceil(K / 16)]    uint8, the bits of float8_e4m3fn      (NVFP4)
//         [..., ceil(K / 32)]    uint8, the bits of float8_e8m0fnu     (MXFP4)
// amax    one float32, for NVFP4 with two levels, else none
//
// With block2d, x is a matrix, and block b of 16 neighbouring rows one tile of 16 by 16 elements:
// its largest magnitude gives all 16 blocks their scale.
//
// fp4_hadamard(x) [..., ceil(K / 16) * 16] is x in float32, filled up with zeros and transformed in
// groups of 16 (fp4_hadamard.h).
//
// A NaN makes its block NaN (scale 0x7F or 0xFF, all codes 7). CPU and CUDA give the same bytes.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "common/dispatch.h"
#include "common/fp4.h"
#include "common/tensor_view.h"
#include "fp4/fp4_rows.h"

namespace my_ops {

// The dtypes of the high-precision side, for CPU and CUDA alike.
using Fp4Floats = Types<float, c10::Half, c10::BFloat16>;

// The operators: checks, allocation, choice of the device (fp4.cpp).
at::Tensor fp4_amax(const at::Tensor& x);
std::tuple<at::Tensor, at::Tensor> fp4_quantize(
    const at::Tensor& x, const std::optional<at::Tensor>& amax, const std::string& format,
    const std::string& scale_mode, const std::string& rounding, int64_t seed, bool block2d);
std::tuple<at::Tensor, at::Tensor, at::Tensor> fp4_quantize_two_level(
    const at::Tensor& x, const std::string& scale_mode, const std::string& rounding, int64_t seed,
    bool block2d);  // NVFP4 with the amax of x, which is the third result
at::Tensor fp4_dequantize(const at::Tensor& packed, const at::Tensor& scale,
                          const std::optional<at::Tensor>& amax, int64_t K,
                          const std::string& format, const std::string& dtype);
at::Tensor fp4_hadamard(const at::Tensor& x);

struct Fp4QuantizeOptions {
  Fp4Format format;
  Fp4ScaleMode scale_mode;
  bool stochastic;
  uint64_t seed;
  bool tiles;         // 16 rows of NVFP4 blocks share a scale
  const float* amax;  // null: one level, or MXFP4
};

// The kernels. `rows` describes x, of which nothing else is read; the other tensors are dense. Only
// fp4_quantize_cuda and fp4_hadamard take rows that are the columns of a matrix.
void fp4_amax_cpu(const TensorView& x, const Fp4Rows& rows, const TensorView& amax);
void fp4_amax_cuda(const TensorView& x, const Fp4Rows& rows, const TensorView& amax);
void fp4_quantize_cpu(const TensorView& x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                      const TensorView& packed, const TensorView& scale);
void fp4_quantize_cuda(const TensorView& x, const Fp4Rows& rows, const Fp4QuantizeOptions& options,
                       const TensorView& packed, const TensorView& scale);
// Two levels of NVFP4 for a small x: finds amax, stores it, quantizes. False: nothing was done.
bool fp4_quantize_small_cuda(const TensorView& x, const Fp4Rows& rows,
                             const Fp4QuantizeOptions& options, const TensorView& packed,
                             const TensorView& scale, const TensorView& amax);
void fp4_dequantize_cpu(const TensorView& packed, const TensorView& scale, const float* amax,
                        Fp4Format format, const Fp4Rows& rows, const TensorView& y);
void fp4_dequantize_cuda(const TensorView& packed, const TensorView& scale, const float* amax,
                         Fp4Format format, const Fp4Rows& rows, const TensorView& y);
void fp4_hadamard_cpu(const TensorView& x, const Fp4Rows& rows, const TensorView& y);
void fp4_hadamard_cuda(const TensorView& x, const Fp4Rows& rows, const TensorView& y);

}  // namespace my_ops
