// Device only: the largest magnitude of a tensor, NaN ignored. Needs no torch.
//
// A maximum does not depend on the order, so atomics give the same result in every run. They
// compare bits as integers: those of non-negative floats are in the order of the floats.
#pragma once

#include "common/overlap.cuh"
#include "common/reduce.cuh"
#include "fp4/fp4_launch.cuh"
#include "fp4/fp4_pack.cuh"

namespace my_ops {

// The largest magnitude that a thread finds in packs `first`, `first + step`, ... of every
// `row_step`th row from `row` on.
template <bool kAligned, int kPacks = kAmaxPacks, typename scalar_t>
__device__ __forceinline__ float rows_largest(const scalar_t* x, const Fp4Rows& shape, int64_t row,
                                              int64_t row_step, int64_t first, int64_t step) {
  constexpr int kN = kVecElements<scalar_t>;
  float largest = 0.0f;
  for (; row < shape.rows; row += row_step) {
    const scalar_t* row_x = x + row * shape.row_stride;
    for (int64_t pack = first; pack * kN < shape.K; pack += step * kPacks) {
      uint32_t packs[kPacks][kVecBytes / 4];
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        load_words<kAligned>(row_x, (pack + p * step) * kN, shape.K, packs[p]);
      }
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        largest = fmaxf(largest, largest_magnitude<scalar_t, /*kKeepNaN=*/false>(packs[p]));
      }
    }
  }
  return largest;
}

// The largest bits among the `threads` of a block, in its first warp.
__device__ __forceinline__ uint32_t block_largest(float largest, int thread, int threads) {
  __shared__ uint32_t of_warp[32];
  const uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(largest));
  if (thread % 32 == 0) of_warp[thread / 32] = bits;
  __syncthreads();
  return thread < 32 ? __reduce_max_sync(~0u, thread < threads / 32 ? of_warp[thread] : 0u) : 0u;
}

// Where blocks meet: `amax`, the bits of a float32, becomes the larger of itself and `bits`.
__device__ __forceinline__ void raise_amax(uint32_t* amax, uint32_t bits) { atomicMax(amax, bits); }

// kParts: each block stores its own maximum, for the next kernel, which reads all of them.
template <bool kAligned, bool kParts, typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads)
    fp4_amax_kernel(const scalar_t* x,  // [rows, K], row_stride
                    uint32_t* amax,     // the bits of a float32, 0 before; kParts: of each block
                    Fp4Rows shape) {
  if constexpr (kParts) {
    wait_for_previous_kernel();
    let_next_kernel_start();
  }

  // Reduce: this thread's packs, then the block
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  constexpr int kPacks = kParts ? kAmaxPartPacks : kAmaxPacks;
  const float largest = rows_largest<kAligned, kPacks>(
      x, shape, int64_t{blockIdx.y} * blockDim.y + threadIdx.y, int64_t{gridDim.y} * blockDim.y,
      int64_t{blockIdx.x} * blockDim.x + threadIdx.x, int64_t{gridDim.x} * blockDim.x);
  const uint32_t bits = block_largest(largest, thread, kFp4Threads);
  if (thread != 0) return;

  // Store
  if constexpr (kParts) {
    amax[blockIdx.y * gridDim.x + blockIdx.x] = bits;
  } else {
    raise_amax(amax, bits);
  }
}

// One cluster finds the maximum by itself and stores it, so that nobody has to clear the result
// first, which takes as long as this kernel.
template <bool kAligned, typename scalar_t>
__global__ void __launch_bounds__(kSmallAmaxMaxThreads)
    fp4_small_amax_kernel(const scalar_t* x, uint32_t* amax, Fp4Rows shape) {
#if __CUDA_ARCH__ >= 900
  cluster_arrive(kSmallAmaxBlocks);
  const float largest =
      rows_largest<kAligned>(x, shape, 0, 1, int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                             int64_t{gridDim.x} * blockDim.x);
  const uint32_t bits = block_largest(largest, threadIdx.x, blockDim.x);
  __shared__ uint32_t of_block[kSmallAmaxBlocks];
  cluster_wait(kSmallAmaxBlocks);
  if (threadIdx.x == 0) {
    uint32_t* const mine = of_block + __clusterRelativeBlockRank();
    *static_cast<uint32_t*>(__cluster_map_shared_rank(mine, 0)) = bits;
  }
  cluster_sync();
  if (__clusterRelativeBlockRank() == 0 && threadIdx.x == 0) {
    uint32_t most = 0;
    for (uint32_t of_one : of_block) most = max(most, of_one);
    *amax = most;
  }
#endif
}

}  // namespace my_ops
