// Host side of this room's .cu files: from tensors and options to the kernels' types and flags.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>

#include "common/fp4.h"
#include "common/vec.cuh"
#include "fp4/fp4_rows.h"

namespace my_ops {

// The kernels use CUDA's own 16-bit types, for their packed arithmetic.
inline const float* cuda_pointer(const float* data) { return data; }
inline float* cuda_pointer(float* data) { return data; }
inline const __half* cuda_pointer(const c10::Half* data) {
  return reinterpret_cast<const __half*>(data);
}
inline __half* cuda_pointer(c10::Half* data) { return reinterpret_cast<__half*>(data); }
inline const __nv_bfloat16* cuda_pointer(const c10::BFloat16* data) {
  return reinterpret_cast<const __nv_bfloat16*>(data);
}
inline __nv_bfloat16* cuda_pointer(c10::BFloat16* data) {
  return reinterpret_cast<__nv_bfloat16*>(data);
}

// Calls function(std::bool_constant), and function(std::integral_constant of the format).
template <typename Function>
void with_flag(bool flag, Function function) {
  flag ? function(std::true_type{}) : function(std::false_type{});
}

template <typename Function>
void with_format(Fp4Format format, Function function) {
  if (format == Fp4Format::nvfp4) {
    function(std::integral_constant<Fp4Format, Fp4Format::nvfp4>{});
  } else {
    function(std::integral_constant<Fp4Format, Fp4Format::mxfp4>{});
  }
}

// Whether every row of the high-precision side consists of whole chunks of elements, in 16-byte
// packs. Then the rows of codes consist of whole chunks too, of half a byte an element.
template <typename scalar_t>
bool rows_are_aligned(const scalar_t* data, const Fp4Rows& shape,
                      int chunk = kVecElements<scalar_t>) {
  return aligned_to_vec(data) && shape.K % chunk == 0 &&
         (shape.rows == 1 || shape.row_stride % kVecElements<scalar_t> == 0);
}

}  // namespace my_ops
