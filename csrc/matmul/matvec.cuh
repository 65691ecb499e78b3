// C = x W with at most four rows in x: a product that is bound by reading W once. Torch-free;
// included by matvec_launch.cuh.
//
// A block owns a group of W's columns over at most kMaxDepth of K, and keeps that part of x in
// shared memory. Every thread has several 16-byte loads of W in flight. Where K takes several
// blocks, each writes its sums to a workspace and sum_matvec_kernel adds them in order.
#pragma once

#include <cstdint>

#include "matmul/matvec_sum.cuh"

namespace my_ops {
namespace matvec {

template <typename scalar_t, bool kAlongK, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    matvec_kernel(const __grid_constant__ Product<scalar_t> product) {
  __shared__ __align__(32) scalar_t shared[kMaxDepth * kMaxRows];
  const uint32_t group = blockIdx.x % product.groups, slice = blockIdx.x / product.groups;
  const int64_t first_k = slice * product.depth;
  const Destination<scalar_t> destination(product, slice);
  const int64_t left = product.K - first_k;
  const int depth = static_cast<int>(left < product.depth ? left : product.depth);

  // x: [k][row] where a thread needs all rows of one k, [row][k] where it needs strips of K.
  for (int i = static_cast<int>(threadIdx.x); i < depth * kMaxRows; i += kThreads) {
    const int row = kAlongK ? i / depth : i % kMaxRows;
    const int k = kAlongK ? i % depth : i / kMaxRows;
    const scalar_t value =
        row < product.rows
            ? product.x[row * product.x_row_stride + (first_k + k) * product.x_k_stride]
            : scalar_t{0};
    shared[kAlongK ? row * kMaxDepth + k : i] = value;
  }
  __syncthreads();
  if constexpr (kAlongK) {
    multiply_along_k<scalar_t, kVectors>(product, shared, group, first_k, depth, destination);
  } else {
    multiply_along_cols<scalar_t, kVectors>(product, shared, group, first_k, depth, destination);
  }
}

// Adds the slices of 32 elements: each warp adds every kWarps-th slice, the parts are added in
// order at the end.
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
    sum_matvec_kernel(const __grid_constant__ Product<scalar_t> product, int slices) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t i = int64_t{blockIdx.x} * 32 + lane;
  const int64_t count = product.rows * product.cols;
  scalar_t sum = 0;
  if (i < count) {
#pragma unroll 8
    for (int slice = warp; slice < slices; slice += kWarps) {
      sum += product.partial[slice * count + i];
    }
  }
  __shared__ scalar_t parts[kWarps][32];
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || i >= count) return;
#pragma unroll
  for (int part = 1; part < kWarps; ++part) sum += parts[part][lane];
  product.C[i / product.cols * product.C_row_stride + i % product.cols * product.C_col_stride] =
      sum;
}

}  // namespace matvec
}  // namespace my_ops
