// rmsnorm_fp4_quantize: fp4_quantize(rmsnorm(x, weight)) in one pass over x, with the same bytes.
//
// x       [..., H]   float32, float16 or bfloat16, any strides
// weight  [H]        as rmsnorm takes it, or none
// packed, scale      those of fp4_quantize, with amax given, one level, or MXFP4
#pragma once

#include "fp4/fp4.h"
#include "rmsnorm/rmsnorm.h"

namespace my_ops {

std::tuple<at::Tensor, at::Tensor> rmsnorm_fp4_quantize(
    const at::Tensor& x, const std::optional<at::Tensor>& weight, std::optional<double> eps,
    double weight_offset, const std::optional<at::Tensor>& amax, const std::string& format,
    const std::string& scale_mode);

// Whether the kernel takes such rows; it then has written packed and scale. The rows consist of
// whole FP4 blocks; the weight is dense, of x's dtype or float32.
bool rmsnorm_fp4_quantize_cuda(const TensorView& x, const Fp4Rows& rows, const TensorView& weight,
                               const RMSNormOptions& norm, const Fp4QuantizeOptions& options,
                               const TensorView& packed, const TensorView& scale);

}  // namespace my_ops
