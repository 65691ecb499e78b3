// C = x W with at most four rows in x: a product that is bound by reading W once. Device only,
// needs no torch.
//
// A block owns a few of W's columns, 128 bytes of a row or four that run along K, and all of K or
// a slice of it. Its threads go through K side by side, each with several 16-byte loads in flight.
// The warps' sums are added in order, then those of the slices: by the blocks of one cluster
// through its shared memory, or, where a cluster is too small, from a workspace by
// sum_matvec_kernel.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "matmul/matvec_sum.cuh"

namespace my_ops {
namespace matvec {

template <typename scalar_t, bool kAlongK, bool kVectors, int kRows>
__global__ void __launch_bounds__(Block<scalar_t, kAlongK, kVectors>::kThreads,
                                  kAlongK ? 16 / sizeof(scalar_t) : 2)
    matvec_kernel(const __grid_constant__ Product<scalar_t> product) {
  using B = Block<scalar_t, kAlongK, kVectors>;
  constexpr int kCols = B::kCols, kWarps = B::kWarps;
  let_next_kernel_start();
  __shared__ scalar_t parts[kWarps][kRows][kCols];
  const int slice = static_cast<int>(blockIdx.x % product.slices);
  const int64_t first_col = blockIdx.x / product.slices * int64_t{kCols};
  const int64_t first_k = slice * product.depth, left = product.K - first_k;
  const int64_t depth = left < product.depth ? left : product.depth;
  if constexpr (kAlongK) {
    multiply_along_k<scalar_t, kVectors>(product, first_col, first_k, depth, parts);
  } else {
    multiply_along_cols<scalar_t, kVectors>(product, first_col, first_k, depth, parts);
  }
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.x), row = thread / kCols;
  const int64_t col = first_col + thread % kCols;
  const bool stores = row < kRows && row < product.rows && col < product.cols;
  scalar_t total = 0;
  if (stores) {
    total = parts[0][row][thread % kCols];
    const int warps = static_cast<int>(blockDim.x) / 32;
    for (int warp = 1; warp < warps; ++warp) total += parts[warp][row][thread % kCols];
  }
  if (product.clustered) {
    __shared__ scalar_t totals[kRows * kCols];
    if (stores) totals[thread] = total;
    sm90::sync_cluster();
    if (stores && slice == 0) {
      for (int other = 1; other < product.slices; ++other) {
        total += sm90::load_at_rank(&totals[thread], other);
      }
    }
    sm90::sync_cluster();  // nobody leaves while its totals are read
    if (slice > 0) return;
  } else if (product.partial != nullptr) {
    if (stores) product.partial[(slice * product.rows + row) * product.cols + col] = total;
    return;
  }
  if (stores) product.C[row * product.C_row_stride + col * product.C_col_stride] = total;
}

constexpr int kSumWarps = 8;

// Adds the slices of 32 elements: each warp adds every kSumWarps-th slice, the parts are added in
// order at the end.
template <typename scalar_t>
__global__ void __launch_bounds__(32 * kSumWarps)
    sum_matvec_kernel(const __grid_constant__ Product<scalar_t> product) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t i = int64_t{blockIdx.x} * 32 + lane;
  const int64_t count = product.rows * product.cols;
  wait_for_previous_kernel();
  scalar_t sum = 0;
  if (i < count) {
#pragma unroll 8
    for (int slice = warp; slice < product.slices; slice += kSumWarps) {
      sum += product.partial[slice * count + i];
    }
  }
  __shared__ scalar_t parts[kSumWarps][32];
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || i >= count) return;
#pragma unroll
  for (int part = 1; part < kSumWarps; ++part) sum += parts[part][lane];
  product.C[i / product.cols * product.C_row_stride + i % product.cols * product.C_col_stride] =
      sum;
}

}  // namespace matvec
}  // namespace my_ops
