// What one block of matvec multiplies, for both layouts of W. Torch-free; included by matvec.cuh.
#pragma once

#include <cstdint>

#include "common/vec.cuh"
#include "matmul/matvec_plan.h"

namespace my_ops {
namespace matvec {

constexpr int kMaxRows = kMatvecRows, kMaxDepth = kMatvecDepth;
constexpr int kWarps = 8, kThreads = 32 * kWarps;

template <typename scalar_t>
struct Product {
  const scalar_t* x;  // [rows, K]
  int64_t x_row_stride, x_k_stride;
  const scalar_t* W;  // [K, cols], dense along one of the two
  int64_t W_stride;   // of the other
  scalar_t* C;        // [rows, cols]
  int64_t C_row_stride, C_col_stride;
  int64_t rows, cols, K;
  uint32_t groups;    // of columns
  int64_t depth;      // of K for one block
  scalar_t* partial;  // [slices, rows, cols], or null where K takes only one block
};

// Columns of W that a block owns.
template <typename scalar_t, bool kAlongK>
constexpr int kGroupCols = kAlongK ? 4 * kWarps : 32 * kVecElements<scalar_t>;

// A lane's kVecElements elements of a row: neighbours in one aligned access, or 32 apart so that
// the warp's lanes read side by side. Those from `left` on are zero.
template <bool kVectors, typename scalar_t>
__device__ __forceinline__ Vec<scalar_t, kVecElements<scalar_t>> load_lane(const scalar_t* from,
                                                                           int64_t left) {
  using Strip = Vec<scalar_t, kVecElements<scalar_t>>;
  Strip strip{};
  if constexpr (kVectors) {
    if (left > 0) strip = *reinterpret_cast<const Strip*>(from);
  } else {
#pragma unroll
    for (int e = 0; e < kVecElements<scalar_t>; ++e) {
      if (left > 32 * e) strip.elements[e] = from[32 * e];
    }
  }
  return strip;
}

// Where a block's sums go: to C, or to its slice of the workspace.
template <typename scalar_t>
struct Destination {
  scalar_t* data;
  int64_t row_stride, col_stride;

  __device__ __forceinline__ Destination(const Product<scalar_t>& product, int64_t slice)
      : data(product.C), row_stride(product.C_row_stride), col_stride(product.C_col_stride) {
    if (product.partial == nullptr) return;
    data = product.partial + slice * product.rows * product.cols;
    row_stride = product.cols;
    col_stride = 1;
  }

  __device__ __forceinline__ void store(int64_t row, int64_t col, scalar_t sum) const {
    data[row * row_stride + col * col_stride] = sum;
  }
};

// W dense along its columns: a lane owns a strip of columns, a warp every kWarps-th k.
template <typename scalar_t, bool kVectors>
__device__ __forceinline__ void multiply_along_cols(const Product<scalar_t>& product,
                                                    scalar_t (&shared)[kMaxDepth * kMaxRows],
                                                    int64_t group, int64_t first_k, int depth,
                                                    const Destination<scalar_t>& destination) {
  constexpr int kWidth = kVecElements<scalar_t>, kUnroll = 8;
  using Strip = Vec<scalar_t, kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first_col = group * kGroupCols<scalar_t, false>;
  const int64_t col = first_col + (kVectors ? lane * kWidth : lane);
  const scalar_t* W = product.W + (first_k + warp) * product.W_stride + col;

  scalar_t sum[kMaxRows][kWidth] = {};
  for (int k0 = warp; k0 < depth; k0 += kWarps * kUnroll) {
    Strip strips[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const bool inside = k0 + i * kWarps < depth;
      strips[i] = load_lane<kVectors>(W, inside ? product.cols - col : 0);
      W += kWarps * product.W_stride;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (k0 + i * kWarps >= depth) break;
      const auto x =
          *reinterpret_cast<const Vec<scalar_t, kMaxRows>*>(&shared[(k0 + i * kWarps) * kMaxRows]);
#pragma unroll
      for (int row = 0; row < kMaxRows; ++row) {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[row][e] += x.elements[row] * strips[i].elements[e];
      }
    }
  }

  // Add the warps' sums in order; x is no longer needed.
  constexpr int kCols = kGroupCols<scalar_t, false>;
  static_assert(kWarps * kCols <= kMaxDepth * kMaxRows, "one row of all warps fits");
  for (int row = 0; row < product.rows; ++row) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kMaxRows; ++r) {
      if (r != row) continue;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        shared[warp * kCols + (kVectors ? lane * kWidth + e : lane + 32 * e)] = sum[r][e];
      }
    }
    __syncthreads();
    const int c = static_cast<int>(threadIdx.x);
    if (c < kCols && first_col + c < product.cols) {
      scalar_t total = shared[c];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) total += shared[w * kCols + c];
      destination.store(row, first_col + c, total);
    }
  }
}

// W dense along K: a warp owns four columns, its lanes strips of K.
template <typename scalar_t, bool kVectors>
__device__ __forceinline__ void multiply_along_k(const Product<scalar_t>& product,
                                                 const scalar_t (&shared)[kMaxDepth * kMaxRows],
                                                 int64_t group, int64_t first_k, int depth,
                                                 const Destination<scalar_t>& destination) {
  constexpr int kWidth = kVecElements<scalar_t>, kCols = 4;
  constexpr int kStep = 32 * kWidth;
  using Strip = Vec<scalar_t, kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first_col = group * kGroupCols<scalar_t, true> + warp * kCols;
  if (first_col >= product.cols) return;
  const int lane_k = kVectors ? lane * kWidth : lane;
  const scalar_t* W[kCols];
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    const int64_t col = first_col + c < product.cols ? first_col + c : product.cols - 1;
    W[c] = product.W + col * product.W_stride + first_k + lane_k;
  }

  scalar_t sum[kMaxRows][kCols] = {};
  // Four loads and their FMAs. With twice as many ptxas spreads the loads between the FMAs, which
  // costs 15 to 20 %.
  for (int k0 = 0; k0 < depth; k0 += kStep) {
    const int k = k0 + lane_k;
    Strip strips[kCols];
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      strips[c] = load_lane<kVectors>(W[c] + k0, depth - k);
    }
#pragma unroll
    for (int row = 0; row < kMaxRows; ++row) {
      const Strip x = load_lane<kVectors>(&shared[row * kMaxDepth + k], depth - k);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[row][c] += x.elements[e] * strips[c].elements[e];
      }
    }
  }

#pragma unroll
  for (int row = 0; row < kMaxRows; ++row) {
    if (row >= product.rows) break;
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      scalar_t total = sum[row][c];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        total += __shfl_xor_sync(0xFFFFFFFFu, total, lanes);
      }
      if (lane == 0 && first_col + c < product.cols) {
        destination.store(row, first_col + c, total);
      }
    }
  }
}

}  // namespace matvec
}  // namespace my_ops
