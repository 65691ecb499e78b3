// The sum over the threads of the blocks that share a row, in a fixed order. Device only, needs no
// torch.
#pragma once

#include "common/reduce.cuh"
#include "common/sm90_cluster.cuh"
#include "rmsnorm/mbarrier.cuh"

namespace my_ops {

// In shared memory. `slices` blocks, a cluster where more than one, share a row.
class RowSum {
 public:
  // Called by all threads first thing in the kernel.
  __device__ __forceinline__ void begin(int slices) {
#if __CUDA_ARCH__ >= 900
    if (slices == 1) return;
    if (threadIdx.x == 0) {
      received_.init(1);
      sm90::fence_barrier_init();
      received_.arrive_expecting(slices * warps() * static_cast<int>(sizeof(double)));
    }
    sm90::arrive_at_cluster();
#endif
  }

  // The sum of every thread's `value`, in all of them. Once in a kernel.
  __device__ __forceinline__ double total(double value, int slices, int slice) {
    const int warp = threadIdx.x / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
    value = lanes_sum<kWarpSize>(value);
    if (slices == 1) {
      if (lane == 0) parts_[warp] = value;
      __syncthreads();
      double sum = parts_[0];
#pragma unroll 4
      for (int part = 1; part < warps(); ++part) sum += parts_[part];
      return sum;
    }
    double sum = 0;
#if __CUDA_ARCH__ >= 900
    sm90::wait_cluster();
    if (lane < slices) received_.store_to_block(&parts_[slice * warps() + warp], value, lane);
    received_.wait(0);
#pragma unroll 2
    for (int part = lane; part < slices * warps(); part += kWarpSize) sum += parts_[part];
#endif
    return lanes_sum<kWarpSize>(sum);
  }

 private:
  __device__ __forceinline__ static int warps() { return blockDim.x / kWarpSize; }

  MBarrier received_;
  double parts_[kMaxClusterBlocks * kMaxBlockWarps];
};

}  // namespace my_ops
