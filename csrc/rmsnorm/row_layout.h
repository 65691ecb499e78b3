// Where each row of a strided tensor starts. Host and device, needs no torch.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MY_OPS_ROW_LAYOUT __host__ __device__ __forceinline__
#else
#define MY_OPS_ROW_LAYOUT inline
#endif

namespace my_ops {

// The dimensions before the last, innermost first, neighbours merged where one stride covers both.
// Contiguous and merely padded tensors have one; q and k slices of a packed qkv have two.
struct RowLayout {
  static constexpr int kMaxDims = 4;
  int dims = 1;
  int64_t sizes[kMaxDims] = {1, 1, 1, 1};
  int64_t strides[kMaxDims] = {0, 0, 0, 0};  // in elements

  MY_OPS_ROW_LAYOUT int64_t offset(int64_t row) const {
    int64_t offset = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int dim = 0; dim + 1 < dims; ++dim) {
      offset += row % sizes[dim] * strides[dim];
      row /= sizes[dim];
    }
    return offset + row * strides[dims - 1];
  }

  // Appends the next dimension outwards. False: it does not fit, the tensor has to be copied.
  bool append(int64_t size, int64_t stride) {
    if (size == 1) return true;
    if (sizes[dims - 1] == 1) {
      sizes[dims - 1] = size;
      strides[dims - 1] = stride;
      return true;
    }
    if (stride == sizes[dims - 1] * strides[dims - 1]) {
      sizes[dims - 1] *= size;
      return true;
    }
    if (dims == kMaxDims) return false;
    sizes[dims] = size;
    strides[dims] = stride;
    ++dims;
    return true;
  }
};

}  // namespace my_ops
