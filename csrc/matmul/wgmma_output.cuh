// What becomes of the sums of the tensor-core kernel: C in float32. Device only, needs no torch.
#pragma once

#include <cstdint>

namespace my_ops {
namespace tensor_core {

// C [M, N], contiguous.
struct FloatOutput {
  float* C;
  int64_t M, N;

  // `values`, in fours: columns col, col + 1 of row `row`, then of row + 8; the next four belong
  // 8 columns further.
  template <int kCount>
  __device__ __forceinline__ void store(int64_t row, int64_t col,
                                        const float (&values)[kCount]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= M) break;
      float* const target = C + (row + 8 * half) * N;
#pragma unroll
      for (int v = 0; v < kCount; v += 4) {
        const int64_t j = col + 2 * v;
        const float x = values[v + 2 * half], y = values[v + 2 * half + 1];
        if (N % 2 == 0) {
          if (j < N) *reinterpret_cast<float2*>(target + j) = make_float2(x, y);
        } else {
          if (j < N) target[j] = x;
          if (j + 1 < N) target[j + 1] = y;
        }
      }
    }
  }
};

}  // namespace tensor_core
}  // namespace my_ops
