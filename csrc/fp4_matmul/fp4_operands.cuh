// Host side of fp4_matmul's .cu files: from tensors to what kernels take.
#pragma once

#include "common/fp4.h"
#include "common/tensor_view.h"
#include "fp4_matmul/product_output.cuh"

namespace my_ops {

inline DenseType dense_type(const TensorView& tensor) {
  if (tensor.scalar_type() == ScalarType::Float) return DenseType::float32;
  return tensor.scalar_type() == ScalarType::Half ? DenseType::float16 : DenseType::bfloat16;
}

inline ProductOutput product_output(const TensorView& y, int64_t K, const TensorView& bias) {
  return {y.mutable_data_ptr(),
          dense_type(y),
          y.size(0),
          y.size(1),
          K,
          y.stride(0),
          y.stride(1),
          bias.const_data_ptr(),
          bias.defined() ? dense_type(bias) : DenseType::float32};
}

// For an x of 16 bits: function(__half or __nv_bfloat16, integral_constant of the format).
template <typename Function>
auto with_types(const TensorView& x, Fp4Format format, const Function& function) {
  const auto with = [&](auto element) {
    return with_format(format, [&](auto of) { return function(element, of); });
  };
  return x.scalar_type() == ScalarType::Half ? with(__half{}) : with(__nv_bfloat16{});
}

// Whether scales of the second operand may lie beyond what the 16 bits of x hold.
inline bool may_misfit(const TensorView& x, Fp4Format format) {
  return x.scalar_type() == ScalarType::Half && format == Fp4Format::mxfp4;
}

inline bool starts_at_multiple_of(const void* data, int64_t stride_bytes, int bytes) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_bytes)) % bytes == 0;
}

}  // namespace my_ops
