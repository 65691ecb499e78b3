// What the kernels of a SIMT product are given, where they store, and how the slices of cut tiles
// are added. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "common/tile_position.cuh"
#include "common/vec.cuh"
#include "matmul/simt_copy.cuh"

namespace my_ops {
namespace simt {

// What a product makes, and how it is cut into tiles.
template <typename scalar_t>
struct Output {
  scalar_t* C;  // [M, N]
  int64_t row_stride, col_stride;
  int64_t M, N, K;
  int64_t whole_tiles;  // the first tiles of C, in the order of tile_of_index; the others are cut
  int64_t cut_tiles;
  int64_t slices;      // of each cut tile
  bool clustered;      // the slices of a tile are the blocks of a cluster, which adds them
  scalar_t* partial;   // [cut_tiles, slices, kRows, kCols], unless clustered
  const int* only_if;  // nothing is computed where this points to 0
  scalar_t one = 1;    // see the end of matmul_simt_kernel
};

template <typename scalar_t>
struct Product : Output<scalar_t> {
  Operand<scalar_t> A;  // [M, K]
  Operand<scalar_t> B;  // [K, N]
};

// The first row and column of the index-th tile.
template <class Tile>
__device__ __forceinline__ void tile_of_index(int64_t index, int64_t M, int64_t N, int64_t& row,
                                              int64_t& col) {
  const int64_t tile_rows = (M + Tile::kRows - 1) / Tile::kRows;
  const int64_t tile_cols = (N + Tile::kCols - 1) / Tile::kCols;
  const auto tile = tile_position(index, tile_rows, tile_cols);
  row = tile.row * Tile::kRows;
  col = tile.col * Tile::kCols;
}

// Writes `strip` to row `row` and columns from `col` of C, as far as they exist.
template <typename scalar_t, int kVector>
__device__ __forceinline__ void store_strip(const Output<scalar_t>& output, int64_t row,
                                            int64_t col, const Vec<scalar_t, kVector>& strip) {
  if (row >= output.M) return;
  scalar_t* const C = output.C + row * output.row_stride;
  // Rows of C are aligned where N is a multiple of the vector.
  if (output.col_stride == 1 && output.N % kVector == 0) {
    store_vec(C, col, output.N, strip);
    return;
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    if (col + e < output.N) C[(col + e) * output.col_stride] = strip.elements[e];
  }
}

// What a block owns: a tile of C, and `tiles` steps of K from first_k on. The one step that may be
// partial is K's first, so that the kernels' main loops need no bounds. Where a slice is stored is
// found out at the end: with that pointer kept through the float32 main loop, ptxas leaves 150
// register bank conflicts among its 2048 FMAs, 3 % of the time.
template <class Tile>
struct BlockWork {
  using scalar_t = typename Tile::scalar_t;
  using Strip = Vec<scalar_t, Tile::kVector>;
  int64_t first_row, first_col, first_k;
  int tiles, first_depth;
  int64_t cut_tile, slice;
  bool cut;

  __device__ __forceinline__ explicit BlockWork(const Output<scalar_t>& output) {
    constexpr int kDepth = Tile::kDepth;
    const int64_t cut_block = int64_t{blockIdx.x} - output.whole_tiles;
    cut = cut_block >= 0;
    const int64_t slices = cut ? output.slices : 1;
    cut_tile = cut ? cut_block / slices : 0;
    slice = cut ? cut_block % slices : 0;
    tile_of_index<Tile>(cut ? output.whole_tiles + cut_tile : blockIdx.x, output.M, output.N,
                        first_row, first_col);
    const int64_t k_tiles = (output.K + kDepth - 1) / kDepth;
    const int64_t first_tile = k_tiles * slice / slices;
    tiles = static_cast<int>(k_tiles * (slice + 1) / slices - first_tile);
    const int partial_depth = static_cast<int>(output.K - (k_tiles - 1) * kDepth);
    first_k = first_tile == 0 ? 0 : partial_depth + (first_tile - 1) * kDepth;
    first_depth = first_tile == 0 ? partial_depth : kDepth;
  }

  // Stores a strip at `row` and `col` of the tile: in C, in this slice's place of the workspace, or
  // in `shared` for sum_in_cluster.
  __device__ __forceinline__ void store(const Output<scalar_t>& output, void* shared, int row,
                                        int col, const Strip& strip) const {
    if (output.clustered) {
      static_cast<Strip*>(shared)[(row * Tile::kCols + col) / Tile::kVector] = strip;
    } else if (cut) {
      scalar_t* const partial =
          output.partial + (cut_tile * output.slices + slice) * (Tile::kRows * Tile::kCols);
      *reinterpret_cast<Strip*>(partial + row * Tile::kCols + col) = strip;
    } else {
      store_strip(output, first_row + row, first_col + col, strip);
    }
  }

  // Every block of the cluster has its slice in `shared`, and adds all of them in order for its
  // part of the tile.
  __device__ __forceinline__ void sum_in_cluster(const Output<scalar_t>& output,
                                                 const void* shared) const {
    constexpr int kStrips = Tile::kRows * Tile::kCols / Tile::kVector;
    const Strip* const strips = static_cast<const Strip*>(shared);
    const int slices = static_cast<int>(output.slices);
    sm90::sync_cluster();
#pragma unroll 2
    for (int i = static_cast<int>(slice * Tile::kThreads + threadIdx.x); i < kStrips;
         i += slices * Tile::kThreads) {
      Strip sum{};
#pragma unroll 4
      for (int rank = 0; rank < slices; ++rank) {
        const Strip next = sm90::load_at_rank(strips + i, rank);
#pragma unroll
        for (int e = 0; e < Tile::kVector; ++e) sum.elements[e] += next.elements[e];
      }
      const int element = i * Tile::kVector;
      store_strip(output, first_row + element / Tile::kCols, first_col + element % Tile::kCols,
                  sum);
    }
    sm90::sync_cluster();  // nobody leaves while its slice is read
  }
};

// A block adds the slices of kSumStrips neighbouring strips of a cut tile. So that many slices are
// read at once, each of its kSumParts rows of threads adds every kSumParts-th slice; the parts are
// added in order at the end.
constexpr int kSumStrips = 32, kSumParts = 8;

template <class Tile>
uint32_t sum_blocks(int64_t cut_tiles) {
  constexpr int kTileStrips = Tile::kRows * Tile::kCols / Tile::kVector;
  static_assert(kTileStrips % kSumStrips == 0, "whole blocks");
  return static_cast<uint32_t>(cut_tiles * (kTileStrips / kSumStrips));
}

template <class Tile>
__global__ void __launch_bounds__(kSumStrips* kSumParts)
    sum_slices_kernel(const __grid_constant__ Output<typename Tile::scalar_t> output) {
  using Strip = Vec<typename Tile::scalar_t, Tile::kVector>;
  wait_for_previous_kernel();
  if (output.only_if != nullptr && *output.only_if == 0) return;
  constexpr int kTileStrips = Tile::kRows * Tile::kCols / Tile::kVector;
  constexpr int kBlocksPerTile = kTileStrips / kSumStrips;
  const int64_t cut_tile = blockIdx.x / kBlocksPerTile;
  const int strip = blockIdx.x % kBlocksPerTile * kSumStrips + threadIdx.x;
  const Strip* const partial = reinterpret_cast<const Strip*>(output.partial) +
                               cut_tile * output.slices * kTileStrips + strip;

  Strip sum{};
#pragma unroll 4
  for (int64_t slice = threadIdx.y; slice < output.slices; slice += kSumParts) {
    const Strip next = partial[slice * kTileStrips];
#pragma unroll
    for (int e = 0; e < Tile::kVector; ++e) sum.elements[e] += next.elements[e];
  }
  __shared__ Strip parts[kSumParts][kSumStrips];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (int part = 1; part < kSumParts; ++part) {
    const Strip next = parts[part][threadIdx.x];
#pragma unroll
    for (int e = 0; e < Tile::kVector; ++e) sum.elements[e] += next.elements[e];
  }
  int64_t first_row, first_col;
  tile_of_index<Tile>(output.whole_tiles + cut_tile, output.M, output.N, first_row, first_col);
  const int element = strip * Tile::kVector;
  store_strip(output, first_row + element / Tile::kCols, first_col + element % Tile::kCols, sum);
}

}  // namespace simt
}  // namespace my_ops
