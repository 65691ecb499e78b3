// What matvec's kernels are given, how a block is shaped, and how it loads. Device only, needs no
// torch.
#pragma once

#include <cstdint>

#include "common/vec.cuh"
#include "matmul/matvec_plan.h"

namespace my_ops {
namespace matvec {

template <typename scalar_t>
struct Product {
  const scalar_t* x;  // [rows, K]
  int64_t x_row_stride, x_k_stride;
  const scalar_t* W;  // [K, cols], dense along one of the two
  int64_t W_stride;   // of the other
  scalar_t* C;        // [rows, cols]
  int64_t C_row_stride, C_col_stride;
  int64_t rows, cols, K;
  int64_t depth;      // of K for one block
  int slices;         // of K
  bool clustered;     // the slices are the blocks of a cluster, which adds them
  scalar_t* partial;  // [slices, rows, cols], unless clustered or one slice
};

// A block's threads and columns. Where W is dense along K, each of up to eight warps reads strips
// of the block's four columns. Else kLanes threads read 128 bytes of one row of W, the next ones of
// the next row, kLoads times.
template <typename scalar_t, bool kAlongK, bool kVectors>
struct Block {
  static constexpr int kThreads = kAlongK ? 256 : 512, kWarps = kThreads / 32;
  static constexpr int kWidth = kAlongK || kVectors ? kVecElements<scalar_t> : 1;
  static constexpr int kCols = kAlongK ? 4 : 128 / sizeof(scalar_t);
  static constexpr int kLanes = kCols / kWidth;
  static constexpr int kLoads = 4 * kVecElements<scalar_t> / kWidth;
  // Of K, what a warp or the block takes at once.
  static constexpr int kUnit = kAlongK ? 32 * kWidth : kThreads / kLanes * kLoads;
};

// An aligned vector that is read once, past L1, from which it would drive x: that took 1.5 us
// of 26.
template <typename scalar_t>
__device__ __forceinline__ Vec<scalar_t, kVecElements<scalar_t>> load_once(const scalar_t* from) {
  using Strip = Vec<scalar_t, kVecElements<scalar_t>>;
  union {
    uint4 words;
    Strip strip;
  } value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.words.x), "=r"(value.words.y), "=r"(value.words.z), "=r"(value.words.w)
               : "l"(from));
  return value.strip;
}

// A lane's elements of a row: neighbours in one aligned access, or 32 apart so that the warp's
// lanes read side by side. Those from `left` on are zero.
template <bool kVectors, typename scalar_t>
__device__ __forceinline__ Vec<scalar_t, kVecElements<scalar_t>> load_lane(const scalar_t* from,
                                                                           int64_t left) {
  Vec<scalar_t, kVecElements<scalar_t>> strip{};
  if constexpr (kVectors) {
    if (left > 0) strip = load_once(from);
  } else {
#pragma unroll
    for (int e = 0; e < kVecElements<scalar_t>; ++e) {
      if (left > 32 * e) strip.elements[e] = from[32 * e];
    }
  }
  return strip;
}

}  // namespace matvec
}  // namespace my_ops
