// What the kernels of a SIMT product are given, where they store, and how the slices of cut tiles
// are added. Torch-free; included by simt_gemm.cuh.
#pragma once

#include <cstdint>

#include "common/vec.cuh"
#include "matmul/simt_copy.cuh"

namespace my_ops {
namespace simt {

template <typename scalar_t>
struct Product {
  Operand<scalar_t> A;  // [M, K]
  Operand<scalar_t> B;  // [K, N]
  scalar_t* C;          // [M, N]
  int64_t row_stride, col_stride;
  int64_t M, N, K;
  int64_t whole_tiles;  // the first tiles of C, in the order of tile_of_index; the others are cut
  int64_t cut_tiles;
  int64_t slices;      // of each cut tile
  scalar_t* partial;   // [slices, cut_tiles, kRows, kCols]
  const int* only_if;  // nothing is computed where this points to 0
};

// The first row and column of the index-th tile. Tiles go in bands of kBand tile rows, column by
// column inside a band, so that the blocks running together share what they read through L2.
template <class Tile>
__device__ __forceinline__ void tile_of_index(int64_t index, int64_t M, int64_t N, int64_t& row,
                                              int64_t& col) {
  constexpr int64_t kBand = 8;
  const int64_t tile_rows = (M + Tile::kRows - 1) / Tile::kRows;
  const int64_t tile_cols = (N + Tile::kCols - 1) / Tile::kCols;
  const int64_t band = index / (kBand * tile_cols);
  const int64_t left = tile_rows - band * kBand;
  const int64_t height = left < kBand ? left : kBand;
  const int64_t within = index - band * kBand * tile_cols;
  row = (band * kBand + within % height) * Tile::kRows;
  col = within / height * Tile::kCols;
}

// Writes `strip` to row `row` and columns from `col` of C, as far as they exist.
template <typename scalar_t, int kVector>
__device__ __forceinline__ void store_strip(const Product<scalar_t>& product, int64_t row,
                                            int64_t col, const Vec<scalar_t, kVector>& strip) {
  if (row >= product.M) return;
  scalar_t* const C = product.C + row * product.row_stride;
  // Rows of C are aligned where N is a multiple of the vector.
  if (product.col_stride == 1 && product.N % kVector == 0) {
    store_vec(C, col, product.N, strip);
    return;
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    if (col + e < product.N) C[(col + e) * product.col_stride] = strip.elements[e];
  }
}

// A block adds the slices of kSumStrips neighbouring strips of a cut tile. So that many slices are
// read at once, each of its kSumParts rows of threads adds every kSumParts-th slice; the parts are
// added in order at the end.
constexpr int kSumStrips = 32, kSumParts = 8;

template <class Tile>
__global__ void __launch_bounds__(kSumStrips* kSumParts)
    sum_slices_kernel(const __grid_constant__ Product<typename Tile::scalar_t> product) {
  using Strip = Vec<typename Tile::scalar_t, Tile::kVector>;
  if (product.only_if != nullptr && *product.only_if == 0) return;
  constexpr int kTileStrips = Tile::kRows * Tile::kCols / Tile::kVector;
  constexpr int kBlocksPerTile = kTileStrips / kSumStrips;
  static_assert(kTileStrips % kSumStrips == 0, "whole blocks");
  const int64_t cut_tile = blockIdx.x / kBlocksPerTile;
  const int strip = blockIdx.x % kBlocksPerTile * kSumStrips + threadIdx.x;
  const int64_t slice_stride = product.cut_tiles * kTileStrips;
  const Strip* partial =
      reinterpret_cast<const Strip*>(product.partial) + cut_tile * kTileStrips + strip;

  Strip sum{};
#pragma unroll 4
  for (int64_t slice = threadIdx.y; slice < product.slices; slice += kSumParts) {
    const Strip next = partial[slice * slice_stride];
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
  tile_of_index<Tile>(product.whole_tiles + cut_tile, product.M, product.N, first_row, first_col);
  const int element = strip * Tile::kVector;
  store_strip(product, first_row + element / Tile::kCols, first_col + element % Tile::kCols, sum);
}

}  // namespace simt
}  // namespace my_ops
