// A matrix transposed, for the TF32 kernel where both operands run along rows. Device only, needs
// no torch.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/vec.cuh"

namespace my_ops {
namespace tf32 {

constexpr int kTransposeTile = 64, kTransposeThreads = 256;

// `to` [cols, rows], dense, from `from` [rows, cols]; rows, cols and from_stride are multiples
// of 4. A block moves a square tile, in vectors on both sides; the padding spreads a column over
// the banks.
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_kernel(const float* from, int64_t from_stride, float* to, int rows, int cols) {
  constexpr int kWidth = kVecElements<float>, kVectors = kTransposeTile / kWidth;
  constexpr int kLines = kTransposeThreads / kVectors, kShare = kTransposeTile / kLines;
  using Vector = Vec<float, kWidth>;
  __shared__ float tile[kTransposeTile][kTransposeTile + 1];
  let_next_kernel_start();
  const unsigned row_tiles = (rows + kTransposeTile - 1) / kTransposeTile;
  const int first_row = static_cast<int>(blockIdx.x % row_tiles) * kTransposeTile;
  const int first_col = static_cast<int>(blockIdx.x / row_tiles) * kTransposeTile;
  const int along = static_cast<int>(threadIdx.x) % kVectors * kWidth;
  const int line = static_cast<int>(threadIdx.x) / kVectors;
  Vector vec[kShare] = {};
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int row = first_row + line + i * kLines, col = first_col + along;
    if (row < rows && col < cols) {
      vec[i] = *reinterpret_cast<const Vector*>(from + row * from_stride + col);
    }
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) tile[line + i * kLines][along + e] = vec[i].elements[e];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int col = first_col + line + i * kLines, row = first_row + along;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) vec[i].elements[e] = tile[along + e][line + i * kLines];
    if (col < cols && row < rows) {
      *reinterpret_cast<Vector*>(to + int64_t{col} * rows + row) = vec[i];
    }
  }
}

}  // namespace tf32
}  // namespace my_ops
