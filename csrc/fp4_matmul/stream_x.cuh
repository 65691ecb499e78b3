// How x comes into shared memory for the stream kernel. Device only, needs no torch.
#pragma once

#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// Rows of x in shared memory: for each word of each step [row][quarter] units of 8 elements.
template <typename scalar_t>
__device__ __forceinline__ void stage_x(uint4* shared, const StreamArguments& args, int first_k,
                                        int steps) {
  const int M = static_cast<int>(args.out.M);
  const int K = static_cast<int>(args.out.K);
  const int row_units = steps * (kStreamDepth / 8);
  for (int i = threadIdx.x; i < M * row_units; i += kStreamWarps * 32) {
    const int m = i / row_units, unit = i % row_units;
    const int k = first_k + unit * 8;
    const auto* const x = static_cast<const uint16_t*>(args.x) + m * args.x_stride;
    uint4 elements = {};
    if (args.x_vectors && k + 8 <= K) {
      elements = *reinterpret_cast<const uint4*>(x + k);
    } else {
      uint16_t each[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) each[e] = k + e < K ? x[k + e] : uint16_t{0};
      elements = {each[0] | uint32_t{each[1]} << 16, each[2] | uint32_t{each[3]} << 16,
                  each[4] | uint32_t{each[5]} << 16, each[6] | uint32_t{each[7]} << 16};
    }
    const int step = unit / 16, quarter = unit / 4 % 4, word = unit % 4;
    shared[((step * 4 + word) * M + m) * 4 + quarter] = elements;
  }
}

}  // namespace my_ops
