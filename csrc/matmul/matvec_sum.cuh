// What one block of matvec multiplies, for both layouts of W. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "matmul/matvec_block.cuh"

namespace my_ops {
namespace matvec {

// Whether a thread loads the next strips while it multiplies these. With four rows the registers
// for it would leave room for fewer blocks on an SM, and the product take 30 us instead of 26.
template <int kRows>
constexpr bool kLoadsAhead = kRows == 1;

// W dense along its columns: a thread owns kWidth of them in every kRowsAtOnce-th row of W. x goes
// through shared memory in chunks. Leaves the sums of the block's warps in `parts`.
template <typename scalar_t, bool kVectors, int kRows, int kCols, int kWarps>
__device__ __forceinline__ void multiply_along_cols(const Product<scalar_t>& product,
                                                    int64_t first_col, int64_t first_k,
                                                    int64_t depth,
                                                    scalar_t (&parts)[kWarps][kRows][kCols]) {
  using B = Block<scalar_t, false, kVectors>;
  constexpr bool kAhead = kLoadsAhead<kRows>;
  constexpr int kWidth = B::kWidth, kLanes = B::kLanes, kLoads = B::kLoads;
  constexpr int kRowsAtOnce = B::kThreads / kLanes;
  constexpr int kChunk = 16384 / (kRows * sizeof(scalar_t));
  using Strip = Vec<scalar_t, kWidth>;
  __shared__ Vec<scalar_t, kRows> chunk[kChunk];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int first = thread / kLanes;
  const int64_t col = first_col + lane * kWidth;
  const bool inside = col < product.cols;
  const scalar_t* W = product.W + (first_k + first) * product.W_stride + col;

  Strip strips[kLoads], next[kLoads];
  auto load = [&](Strip(&to)[kLoads], int64_t k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      to[i] = Strip{};
      if (inside && k + first + i * kRowsAtOnce < depth) {
        if constexpr (kVectors) {
          to[i] = load_once(W);
        } else {
          to[i].elements[0] = *W;
        }
      }
      W += kRowsAtOnce * product.W_stride;
    }
  };
  if (kAhead) load(strips, 0);
  scalar_t sum[kRows][kWidth] = {};
  for (int64_t k = 0; k < depth; k += B::kUnit) {
    if (k % kChunk == 0) {
      __syncthreads();
      for (int i = thread; i < kChunk && k + i < depth + B::kUnit; i += B::kThreads) {
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          const bool exists = row < product.rows && k + i < depth;
          chunk[i].elements[row] =
              exists
                  ? product.x[row * product.x_row_stride + (first_k + k + i) * product.x_k_stride]
                  : scalar_t{0};
        }
      }
      __syncthreads();
    }
    if (!kAhead) {
      load(strips, k);
    } else if (k + B::kUnit < depth) {
      load(next, k + B::kUnit);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const Vec<scalar_t, kRows> x = chunk[k % kChunk + first + i * kRowsAtOnce];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[row][e] += x.elements[row] * strips[i].elements[e];
      }
    }
    if (kAhead) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) strips[i] = next[i];
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
#pragma unroll
      for (int lanes = 16; lanes >= kLanes; lanes /= 2) {
        sum[row][e] += __shfl_xor_sync(0xFFFFFFFFu, sum[row][e], lanes);
      }
      if (thread % 32 < kLanes) parts[thread / 32][row][lane * kWidth + e] = sum[row][e];
    }
  }
}

// W dense along K: every warp takes its strips of K of the same kCols columns.
template <typename scalar_t, bool kVectors, int kRows, int kCols, int kWarps>
__device__ __forceinline__ void multiply_along_k(const Product<scalar_t>& product,
                                                 int64_t first_col, int64_t first_k, int64_t depth,
                                                 scalar_t (&parts)[kWarps][kRows][kCols]) {
  constexpr int kWidth = kVecElements<scalar_t>;
  constexpr bool kAhead = kLoadsAhead<kRows>;
  using Strip = Vec<scalar_t, kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  const scalar_t* W[kCols];
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    const int64_t col = first_col + c < product.cols ? first_col + c : product.cols - 1;
    W[c] = product.W + col * product.W_stride + first_k;
  }
  const scalar_t* const x = product.x + first_k * product.x_k_stride;

  Strip strips[kCols], next[kCols];
  auto load = [&](Strip(&to)[kCols], int64_t k) {
#pragma unroll
    for (int c = 0; c < kCols; ++c) to[c] = load_lane<kVectors>(W[c] + k, depth - k);
  };
  scalar_t sum[kRows][kCols] = {};
  int64_t k = warp * (32 * kWidth) + (kVectors ? lane * kWidth : lane);
  if (kAhead) load(strips, k);
  for (; k < depth; k += step) {
    if (kAhead) {
      load(next, k + step);
    } else {
      load(strips, k);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= product.rows) break;
      Strip factors{};
      const scalar_t* const from = x + row * product.x_row_stride + k * product.x_k_stride;
      if constexpr (kVectors) {
        factors = *reinterpret_cast<const Strip*>(from);
      } else {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          if (k + 32 * e < depth) factors.elements[e] = from[32 * e * product.x_k_stride];
        }
      }
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[row][c] += factors.elements[e] * strips[c].elements[e];
      }
    }
    if (kAhead) {
#pragma unroll
      for (int c = 0; c < kCols; ++c) strips[c] = next[c];
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      scalar_t total = sum[row][c];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        total += __shfl_xor_sync(0xFFFFFFFFu, total, lanes);
      }
      if (lane == 0) parts[warp][row][c] = total;
    }
  }
}

}  // namespace matvec
}  // namespace my_ops
