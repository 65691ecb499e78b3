// The second stage of rmsnorm's backward: the sum over the parts of the weight's gradient. Device
// only, needs no torch.
#pragma once

#include <cstdint>

#include "common/reduce.cuh"
#include "rmsnorm/chunk.cuh"

namespace my_ops {

// grad_weight[column] = the sum of partial_weight[:, column], in an order fixed by `parts`. A block
// owns 32 columns; its 32 warps share the parts.
constexpr int kWeightThreads = 1024;
template <typename acc_t, typename w_t>
__global__ void __launch_bounds__(kWeightThreads)
    rmsnorm_weight_kernel(const acc_t* partial_weight,  // [parts, H]
                          w_t* grad_weight,             // [H]
                          int64_t parts, int64_t H) {
  __shared__ acc_t sums[kWarpSize][kWarpSize + 1];  // the padding keeps both passes off one bank
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpSize + lane;
  acc_t sum = 0;
  if (column < H) {
#pragma unroll 4
    for (int64_t part = warp; part < parts; part += kWarpSize) {
      sum += partial_weight[part * H + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  sum = lanes_sum<kWarpSize>(sums[lane][warp]);
  const int64_t owned = static_cast<int64_t>(blockIdx.x) * kWarpSize + warp;
  if (lane == 0 && owned < H) grad_weight[owned] = narrow<w_t>(sum);
}

}  // namespace my_ops
