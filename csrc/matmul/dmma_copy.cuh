// How a tile of a float64 operand gets from global to shared memory, and from there to the
// registers of mma. Device only, needs no torch.
//
// mma.m16n8k8 wants from a thread (group g of 8, member t of 4) A's elements at the rows g and
// g + 8 and B's at the column g, each at k = t and t + 4. Which of the tile's rows, columns and k
// these are is free. They are named such that one 16-byte shared load fills two registers at once:
// A lies [k][row] and the rows are 2g and 2g + 1; B lies [column][k] and the k are 2t and 2t + 1.
// In the other layout of either, every register costs a move: 44 TFLOP/s instead of 59. So an
// operand that lies otherwise in memory is transposed on its way in, by copies of one element.
#pragma once

#include <cstdint>

#include "matmul/simt_copy.cuh"

namespace my_ops {
namespace dmma {

// One operand: `rows` is M for A and N for B. Strides in elements.
struct Operand {
  const double* data;
  int64_t row_stride, k_stride;
};

constexpr int kDepth = 16;

// A tile in shared memory, in lines of 16-byte chunks: of one k each ([k][row]) or of one row
// ([row][k]).
template <int kTileRows_, bool kLinesAlongK_>
struct SharedTile {
  static constexpr int kTileRows = kTileRows_;
  static constexpr bool kLinesAlongK = kLinesAlongK_;
  static constexpr int kLines = kLinesAlongK ? kTileRows : kDepth;
  static constexpr int kLineChunks = (kLinesAlongK ? kDepth : kTileRows) / 2;
  // A chunk of padding puts the four k of a quarter warp's load of A on different banks.
  static constexpr int kPitchBytes = (kLineChunks + (kLinesAlongK ? 0 : 1)) * 16;
  static constexpr int kBytes = kLines * kPitchBytes;

  // Chunks of [row][k] are exchanged by the row: eight rows next to each other have one chunk on
  // all banks, and two of them a whole quarter warp's load.
  static __device__ __forceinline__ int offset(int row, int k) {
    if constexpr (!kLinesAlongK) return k * kPitchBytes + row * 8;
    const int exchange = (row & 1) << 2 | (row >> 1 & 3);
    return row * kPitchBytes + ((k >> 1) ^ exchange) * 16 + (k & 1) * 8;
  }
};

// A thread's part in copying the tiles of one operand; what lies past its rows becomes zeros.
//
// kVectors: the operand lies as the shared tile does and is 16-byte aligned. Otherwise single
// elements, in any strides.
template <class Shared, int kThreads, bool kVectors>
class Copier {
  static constexpr int kLineChunks = Shared::kLineChunks, kLines = Shared::kLines;
  // One pass of the block: some lines in vectors, all k of some rows in elements.
  static constexpr int kPass = kVectors ? kThreads / kLineChunks : kThreads / kDepth;
  static constexpr int kCopies = kVectors ? kLines / kPass : Shared::kTileRows / kPass;
  static constexpr bool kPassesAlongRows = !kVectors || Shared::kLinesAlongK;
  static_assert(kThreads % kLineChunks == 0 && kCopies > 0, "whole passes");
  static_assert(kCopies * kPass == (kVectors ? kLines : Shared::kTileRows), "whole passes");

 public:
  __device__ __forceinline__ Copier(const Operand& operand, int64_t first_row, int64_t rows,
                                    int64_t first_k)
      : k_stride_(operand.k_stride) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kVectors) {
      const int line = thread / kLineChunks, element = thread % kLineChunks * 2;
      row_ = Shared::kLinesAlongK ? line : element;
      k_ = Shared::kLinesAlongK ? element : line;
    } else {
      // Lanes side by side read what lies side by side.
      const bool along_k = operand.k_stride <= operand.row_stride;
      row_ = along_k ? thread / kDepth : thread % kPass;
      k_ = along_k ? thread % kDepth : thread / kPass;
    }
    const int64_t left = rows - first_row;
    rows_ = static_cast<int>(left < Shared::kTileRows ? left : Shared::kTileRows);
    step_ = kPass * (kPassesAlongRows ? operand.row_stride : k_stride_);
    source_ = operand.data + (first_row + row_) * operand.row_stride + (first_k + k_) * k_stride_;
  }

  // Copies a tile of which the first `depth` k are valid (the rest becomes zeros) to the shared
  // address `tile`, and moves on by as much.
  __device__ __forceinline__ void copy(uint32_t tile, int depth) {
    const double* from = source_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = row_ + (kPassesAlongRows ? i * kPass : 0);
      const int k = k_ + (kPassesAlongRows ? 0 : i * kPass);
      simt::copy_async_or_zero<kVectors ? 16 : 8>(tile + Shared::offset(row, k), from,
                                                  row < rows_ && k < depth);
      from += step_;
    }
    source_ += depth * k_stride_;
  }

 private:
  const double* source_;
  int64_t k_stride_, step_;
  int row_, k_, rows_;
};

}  // namespace dmma
}  // namespace my_ops
