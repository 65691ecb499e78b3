// Host side of fp4_matmul's .cu files: from tensors to what kernels take.
#pragma once

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

inline bool starts_at_multiple_of(const void* data, int64_t stride_bytes, int bytes) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_bytes)) % bytes == 0;
}

}  // namespace my_ops
