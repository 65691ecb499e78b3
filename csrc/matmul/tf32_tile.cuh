// Tiles and arguments of the TF32 kernel for operands as they lie in memory. Device only, needs no
// torch.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/tile_position.cuh"

namespace my_ops {
namespace tf32 {

constexpr int kDepth = 32;  // of K in a stage: rows of 128 bytes
constexpr int kRowBytes = 4 * kDepth;

// Where the rows of A run along M, A comes in boxes of 32 rows (128 bytes) by kDepth.
constexpr int kBoxRows = 32, kBoxBytes = kBoxRows * kRowBytes;

// A block computes kRows x kCols of C: kConsumers warpgroups with 64 rows each. One stage in shared
// memory: A's tile, then B's. K may be cut into up to kMaxSlices slices.
template <int kConsumers_, int kCols_, int kStages_, int kMaxSlices_>
struct Tile {
  static constexpr int kConsumers = kConsumers_;
  static constexpr int kConsumerThreads = 128 * kConsumers, kThreads = 128 + kConsumerThreads;
  static constexpr int kRows = 64 * kConsumers, kBoxes = kRows / kBoxRows;
  static constexpr int kCols = kCols_, kStages = kStages_, kMaxSlices = kMaxSlices_;
  static constexpr int kOffsetB = kRows * kRowBytes;
  static constexpr int kStageBytes = kOffsetB + kCols * kRowBytes;
  static constexpr int kOffsetBarriers = kStages * kStageBytes;
  static constexpr int kSharedBytes = kOffsetBarriers + (2 * kStages + 1) * 8;
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");

  // A consumer's registers, in fours ("strips": eight columns of C in each warp). Where they are a
  // slice's, they go to where the stages were; behind them is place for those of other slices.
  static constexpr int kAccumulators = kCols / 2, kStrips = kAccumulators / 4;
  static constexpr int kStripBytes = kConsumerThreads * 16;
  static constexpr bool kMovesRegisters = kThreads > 256;  // below, all have what they need
  static constexpr bool kSliced = kMaxSlices > 1;
  static_assert(!kSliced || (2 * kStrips + kMaxSlices) * kStripBytes <= kOffsetBarriers,
                "room for a slice's sums and what arrives of other slices");
};

// C [M, N] = A [M, K] B [K, N]. Tiles are numbered by tile_position; each is cut into `slices` of
// K, the blocks of one cluster. B runs along K in memory.
struct Product {
  CUtensorMap A, B;
  int M, N;
  int k_steps;  // of 2 * kDepth
  int row_tiles, col_tiles, slices;
  float* C;
  int64_t stride;  // of C's rows; of its columns if it is written transposed
};

// What a block does, and where things lie in its shared memory.
template <class Tile>
struct Block {
  uint32_t shared;
  int slice, slices;
  int row, col, first_k, k_tiles;  // of C, and in stages of K

  __device__ Block(const Product& product, uint32_t shared_)
      : shared(shared_),
        slice(static_cast<int>(blockIdx.x) % product.slices),
        slices(product.slices) {
    const auto position =
        tile_position(static_cast<int>(blockIdx.x) / slices, product.row_tiles, product.col_tiles);
    row = position.row * Tile::kRows;
    col = position.col * Tile::kCols;
    first_k = product.k_steps * slice / slices * 2;
    k_tiles = product.k_steps * (slice + 1) / slices * 2 - first_k;
  }

  __device__ uint32_t stage(int index) const { return shared + index * Tile::kStageBytes; }
  __device__ uint32_t full(int index) const { return shared + Tile::kOffsetBarriers + index * 8; }
  __device__ uint32_t empty(int index) const { return full(Tile::kStages + index); }
  __device__ uint32_t exchanged() const { return full(2 * Tile::kStages); }
};

// What a thread of a consumer holds: in every eight columns the pair from `col` on, of rows `row`
// and row + kGap of the block's tile.
template <bool kAlongRows>
struct ThreadPosition {
  static constexpr int kGap = kAlongRows ? 1 : 8;
  int row, col;

  // Where A runs along its rows a thread takes two neighbouring ones, and a warp four of the eight
  // 16-byte chunks of a box, see chunk().
  __device__ ThreadPosition(int warp, int lane)
      : row(kAlongRows ? warp / 2 * kBoxRows + chunk(warp, lane) * 4 + lane / 4 % 2 * 2
                       : warp * 16 + lane / 4),
        col(lane % 4 * 2) {}

  // Half a warp reads two chunks of each of four K. With the swizzle (chunk ^ K % 8) they fall on
  // all banks if the two are four apart.
  static __device__ int chunk(int warp, int lane) {
    return warp % 2 * 2 + lane / 16 + lane / 8 % 2 * 4;
  }
};

}  // namespace tf32
}  // namespace my_ops
