// Host side of .cu files: from torch's 16-bit types to CUDA's own, which kernels use for their
// packed arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

namespace my_ops {

template <typename scalar_t>
struct CudaType {
  using type = scalar_t;
};
template <>
struct CudaType<c10::Half> {
  using type = __half;
};
template <>
struct CudaType<c10::BFloat16> {
  using type = __nv_bfloat16;
};
template <typename scalar_t>
struct CudaType<const scalar_t> {
  using type = const typename CudaType<scalar_t>::type;
};

template <typename scalar_t>
typename CudaType<scalar_t>::type* cuda_pointer(scalar_t* data) {
  return reinterpret_cast<typename CudaType<scalar_t>::type*>(data);
}

}  // namespace my_ops
