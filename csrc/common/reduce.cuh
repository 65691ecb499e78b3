// Sums over the threads of a warp and of a block, and the barrier of a cluster of blocks. Device
// only, needs no torch. Every order of addition is fixed, so the same input gives the same bits.
//
// The barrier is made of nvcc's built-in functions: cooperative_groups.h, which wraps them, would
// add 5 s to what a .cu file takes to compile.
#pragma once

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

// Two such sums at once, in little more than half the shuffles: each half of the lanes takes over
// one of them. On return the lower half holds the sum of sums[0], the upper half that of sums[1].
template <int kLanes, typename T>
__device__ __forceinline__ T lanes_sum_halves(const T (&sums)[2]) {
  constexpr int kHalf = kLanes / 2;
  const bool upper = threadIdx.x & kHalf;
  T sum = (upper ? sums[1] : sums[0]) +
          __shfl_xor_sync(0xffffffffu, upper ? sums[0] : sums[1], kHalf, kLanes);
  return lanes_sum<kHalf>(sum);
}

// Both sums in all lanes, from the halves.
template <int kLanes, typename T>
__device__ __forceinline__ void share_halves(T sum, T (&sums)[2]) {
  const bool upper = threadIdx.x & (kLanes / 2);
  const T other = __shfl_xor_sync(0xffffffffu, sum, kLanes / 2, kLanes);
  sums[0] = upper ? other : sum;
  sums[1] = upper ? sum : other;
}

// A block may write into its neighbours' shared memory only once they run: arrive first thing in
// the kernel, wait before the first access.
__device__ __forceinline__ void cluster_arrive(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) __cluster_barrier_arrive();
#endif
}
__device__ __forceinline__ void cluster_wait(int blocks) {
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) __cluster_barrier_wait();
#endif
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_sync() {
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}
#endif

// Two sums over all threads of a block of up to kMaxBlockWarps warps, in all of them, from those of
// each warp in its halves. Calls in a loop alternate between two scratches, so that one barrier a
// call is enough: no thread can be two calls ahead of another.
template <typename T>
__device__ __forceinline__ void block_sum_halves(T warp_sum, T (&sums)[2],
                                                 T (&scratch)[kMaxBlockWarps][2]) {
  const int warps = blockDim.x / kWarpSize;
  const int part = threadIdx.x % kMaxBlockWarps;
  const int which = threadIdx.x % kWarpSize / kMaxBlockWarps;
  if (part == 0) scratch[threadIdx.x / kWarpSize][which] = warp_sum;
  __syncthreads();
  const T sum = lanes_sum<kMaxBlockWarps>(part < warps ? scratch[part][which] : T(0));
  share_halves<kWarpSize>(sum, sums);
}

}  // namespace my_ops
