// Dense x [M, K] of the fused kernel, read eight elements at a time. Device only, needs no torch.
#pragma once

#include <cstdint>

namespace my_ops {

// Elements of 16 bits.
struct DenseRows {
  const uint16_t* data;
  int64_t row_stride, col_stride;
  bool vectors;  // rows are dense and start at multiples of 16 bytes
};

// Elements k to k + 8 of row m; zeros past K.
__device__ __forceinline__ uint4 load_elements(const DenseRows& x, int K, int64_t m, int k) {
  const uint16_t* const row = x.data + m * x.row_stride;
  if (k >= K) return {};
  if (x.vectors && k + 8 <= K) return *reinterpret_cast<const uint4*>(row + k);
  uint32_t each[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) each[e] = k + e < K ? row[(k + e) * x.col_stride] : 0;
  return {each[0] | each[1] << 16, each[2] | each[3] << 16, each[4] | each[5] << 16,
          each[6] | each[7] << 16};
}

}  // namespace my_ops
