// Sums over the threads of a warp, of a block, and of a cluster of blocks. Device only, needs no
// torch. Every order of addition is fixed, so the same input gives the same bits.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

namespace my_ops {

constexpr int kWarpSize = 32;
constexpr int kMaxBlockWarps = 16;
constexpr int kMaxClusterBlocks = 16;  // beyond 8 a kernel must opt in

// The sum over each group of `kLanes` neighbouring lanes, in all of them.
template <int kLanes, typename T>
__device__ __forceinline__ T lanes_sum(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset, kLanes);
  }
  return value;
}

// What the warps of the blocks that share a sum write to each other: `N` values from each. A loop
// that sums again and again alternates between two of these, so that one barrier a sum is enough:
// nobody can be two sums ahead.
template <typename T, int N>
struct SumScratch {
  T values[kMaxClusterBlocks * kMaxBlockWarps][N];
};

// A block may write into its neighbours only once they run: arrive first thing in the kernel, wait
// before the first sum.
__device__ __forceinline__ void cluster_arrive(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) cooperative_groups::this_cluster().barrier_arrive();
#endif
}
__device__ __forceinline__ void cluster_wait(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) cooperative_groups::this_cluster().barrier_wait();
#endif
}

// Sums `values` over all threads of the `blocks` blocks of a cluster (1: over this block), in all
// of them. Each warp sends its part to every block, then one barrier, then each warp adds all.
template <typename T, int N>
__device__ __forceinline__ void blocks_sum(T (&values)[N], SumScratch<T, N>& scratch, int blocks) {
  const int warps = (blockDim.x + kWarpSize - 1) / kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = lanes_sum<kWarpSize>(values[i]);

  if (blocks == 1) {
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) scratch.values[warp][i] = values[i];
    }
    __syncthreads();
  } else {
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    if (lane < blocks) {
      T* slot = scratch.values[cluster.block_rank() * warps + warp];
      T* remote = cluster.map_shared_rank(slot, lane);
#pragma unroll
      for (int i = 0; i < N; ++i) remote[i] = values[i];
    }
    cluster.sync();
#endif
  }

#pragma unroll
  for (int i = 0; i < N; ++i) {
    T sum = 0;
#pragma unroll 1
    for (int part = lane; part < warps * blocks; part += kWarpSize) sum += scratch.values[part][i];
    values[i] = lanes_sum<kWarpSize>(sum);
  }
}

}  // namespace my_ops
