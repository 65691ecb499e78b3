// The tile shapes of matmul's SIMT kernel and the loading of their stages. Device only, needs no
// torch.
#pragma once

#include <cstdint>

#include "matmul/simt_copy.cuh"

namespace my_ops {
namespace simt {

template <typename scalar_t_, int kRows_, int kCols_, int kDepth_, int kThreadRows_,
          int kThreadCols_, int kStages_, int kBlocksPerSM_, int kCopyGroups_>
struct Tile {
  using scalar_t = scalar_t_;
  static constexpr int kRows = kRows_, kCols = kCols_, kDepth = kDepth_;
  static constexpr int kThreadRows = kThreadRows_, kThreadCols = kThreadCols_;
  static constexpr int kStages = kStages_, kBlocksPerSM = kBlocksPerSM_;
  static constexpr int kCopyGroups = kCopyGroups_;
  // A 16-byte vector, the unit of every shared load and of the output's strips.
  static constexpr int kVector = 16 / sizeof(scalar_t);
  // A warp is 4 x 8 threads.
  static constexpr int kWarpRows = 4 * kThreadRows, kWarpCols = 8 * kThreadCols;
  static constexpr int kThreads = 32 * (kRows / kWarpRows) * (kCols / kWarpCols);
  // The pad turns the transposing stores (8 k x 4 rows a warp) into 32 different banks and keeps
  // every shared row 16-byte aligned.
  static constexpr int kPitchA = kRows + kVector, kPitchB = kCols + kVector;
  // One stage: kDepth rows of A's tile, then kDepth rows of B's.
  static constexpr int kOffsetB = kDepth * kPitchA;
  static constexpr int kStageElements = kOffsetB + kDepth * kPitchB;
  static constexpr int kStageBytes = kStageElements * sizeof(scalar_t);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kRows % kWarpRows == 0 && kCols % kWarpCols == 0, "whole warps");
  static_assert(kDepth % 8 == 0, "the transposing copy moves 8 k at a time");
};

// Brings the K tiles of one block's slice into shared memory, one after the other.
template <class Tile, Copy kCopyA, Copy kCopyB>
class TileLoader {
  using scalar_t = typename Tile::scalar_t;
  using CopierA =
      TileCopier<scalar_t, Tile::kRows, Tile::kDepth, Tile::kPitchA, Tile::kThreads, kCopyA>;
  using CopierB =
      TileCopier<scalar_t, Tile::kCols, Tile::kDepth, Tile::kPitchB, Tile::kThreads, kCopyB>;
  static constexpr int kOffsetBytesB = Tile::kOffsetB * sizeof(scalar_t);

 public:
  __device__ __forceinline__ TileLoader(const CopierA& copy_a, const CopierB& copy_b, int tiles)
      : copy_a_(copy_a), copy_b_(copy_b), left_(tiles) {}

  // The first tile, of which only `depth` k are valid: the rest becomes zeros.
  __device__ __forceinline__ void load_first(uint32_t stage, int depth) {
#pragma unroll
    for (int i = 0; i < CopierA::kCopies; ++i) copy_a_.copy_partial(i, stage, depth);
#pragma unroll
    for (int i = 0; i < CopierB::kCopies; ++i) {
      copy_b_.copy_partial(i, stage + kOffsetBytesB, depth);
    }
    next(depth);
  }

  // One of kCopyGroups parts of the next tile, if there is one.
  __device__ __forceinline__ void load_group(int group, uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < CopierA::kCopies; ++i) {
      if (i * Tile::kCopyGroups / CopierA::kCopies == group) copy_a_.copy_if(left_ > 0, i, stage);
    }
#pragma unroll
    for (int i = 0; i < CopierB::kCopies; ++i) {
      if (i * Tile::kCopyGroups / CopierB::kCopies == group) {
        copy_b_.copy_if(left_ > 0, i, stage + kOffsetBytesB);
      }
    }
  }

  // Closes the tile whose groups were loaded and moves on by `depth` of K.
  __device__ __forceinline__ void next(int depth) {
    commit_copies();
    if (--left_ > 0) {
      copy_a_.advance(depth);
      copy_b_.advance(depth);
    }
  }

 private:
  CopierA copy_a_;
  CopierB copy_b_;
  int left_;
};

}  // namespace simt
}  // namespace my_ops
