// Four neighbouring lanes exchange words and sums. Device only, needs no torch.
#pragma once

#include <cstdint>

namespace my_ops {

__device__ __forceinline__ uint32_t pick(const uint4& words, int index) {
  const uint32_t low = index & 1 ? words.y : words.x;
  const uint32_t high = index & 1 ? words.w : words.z;
  return index & 2 ? high : low;
}

// Lane t of a quad gives word i of its four to lane i and gets theirs: a 4 x 4 transposition.
__device__ __forceinline__ uint4 transpose_in_quad(const uint4& words) {
  const int t = threadIdx.x % 4;
  uint32_t got[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) got[r] = __shfl_xor_sync(~0u, pick(words, t ^ r), r);
  const uint4 by_distance = {got[0], got[1], got[2], got[3]};
  return {pick(by_distance, t), pick(by_distance, t ^ 1), pick(by_distance, t ^ 2),
          pick(by_distance, t ^ 3)};
}

__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

}  // namespace my_ops
