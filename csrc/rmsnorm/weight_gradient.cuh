// The second stage of rmsnorm's backward: the sum over the parts of the weight's gradient. Device
// only, needs no torch.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/reduce.cuh"
#include "rmsnorm/chunk.cuh"

namespace my_ops {

// grad_weight[column] = the sum of partial_weight[:, column], in an order fixed by `parts`. Groups
// of `sharing` warps of a block own 32 columns each and share the parts. In float64: where parts
// have few rows they are many, and adding them in float32 would lose more than adding the rows did.
constexpr int kWeightMaxWarps = 32;
template <typename acc_t, typename w_t>
__global__ void __launch_bounds__(kWeightMaxWarps* kWarpSize)
    rmsnorm_weight_kernel(const acc_t* partial_weight,  // [parts, H]
                          w_t* grad_weight,             // [H]
                          int64_t parts, int64_t H, int sharing) {
  __shared__ double sums[kWeightMaxWarps][kWarpSize];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int64_t groups = blockDim.x / kWarpSize / sharing;
  const int64_t column = (blockIdx.x * groups + warp / sharing) * kWarpSize + lane;
  wait_for_previous_kernel();
  double sum = 0;
  if (column < H) {
#pragma unroll 8
    for (int64_t part = warp % sharing; part < parts; part += sharing) {
      sum += partial_weight[part * H + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp % sharing != 0 || column >= H) return;
  for (int other = 1; other < sharing; ++other) sum += sums[warp + other][lane];
  grad_weight[column] = narrow<w_t>(static_cast<acc_t>(sum));
}

}  // namespace my_ops
