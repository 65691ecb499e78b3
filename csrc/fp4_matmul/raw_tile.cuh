// How the raw bytes of an operand's tile come into shared memory. Device only, needs no torch.
#pragma once

#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

// Which dimension of a factor lies densely in memory: the contracted one or the other.
enum class Major { depth, outer };

constexpr int kDepth = 64;       // how far along the contracted dimension one tile reaches
constexpr int kPadElements = 8;  // 16 bytes a row keep ldmatrix free of bank conflicts

// One tile of an operand, in memory order, and where the tile at (outer, depth) begins.
template <Major kMajor, int kOuter>
struct TileShape {
  static constexpr int kRows = kMajor == Major::depth ? kOuter : kDepth;
  static constexpr int kCols = kMajor == Major::depth ? kDepth : kOuter;
  static constexpr int kPitch = kCols + kPadElements;
  static constexpr int kElements = kRows * kPitch;

  __device__ static int64_t row(int64_t outer, int64_t depth) {
    return kMajor == Major::depth ? outer : depth;
  }
  __device__ static int64_t col(int64_t outer, int64_t depth) {
    return kMajor == Major::depth ? depth : outer;
  }
};

// A matrix of bytes. Each row starts at a multiple of unit_bytes (1, 4 or 16).
struct ByteRows {
  const uint8_t* data;
  int64_t rows;
  int64_t row_bytes;
  int64_t stride_bytes;
  int unit_bytes;
};

template <int kThreads, int kRows, int kRowBytes, int kUnitBytes>
__device__ __forceinline__ void fetch_units(uint8_t* tile, const ByteRows& source, int64_t row0,
                                            int64_t byte0) {
  constexpr int kUnitsInRow = kRowBytes / kUnitBytes;
  static_assert(kUnitsInRow <= kThreads && kThreads % kUnitsInRow == 0,
                "a thread keeps its column");
  constexpr int kRowStep = kThreads / kUnitsInRow;
  const int first_row = threadIdx.x / kUnitsInRow;
  const int64_t byte = byte0 + threadIdx.x % kUnitsInRow * kUnitBytes;
  const int64_t left = source.row_bytes - byte;
  const int valid_bytes = static_cast<int>(left < 0 ? 0 : (left < kUnitBytes ? left : kUnitBytes));
  const int64_t rows_left = valid_bytes > 0 ? source.rows - row0 : 0;
  const uint8_t* from = source.data + (row0 + first_row) * source.stride_bytes + byte;
#pragma unroll 1
  for (int row = first_row; row < kRows; row += kRowStep) {
    uint8_t* const to = tile + (row * kUnitsInRow + threadIdx.x % kUnitsInRow) * kUnitBytes;
    const bool inside = row < rows_left;
    if constexpr (kUnitBytes == 1) {
      *to = inside ? *from : 0;
    } else if constexpr (kUnitBytes == 2) {
      *reinterpret_cast<uint16_t*>(to) = inside ? *reinterpret_cast<const uint16_t*>(from) : 0;
    } else {
      copy_async<kUnitBytes>(to, inside ? from : source.data, inside ? valid_bytes : 0);
    }
    from += kRowStep * source.stride_bytes;
  }
}

// Starts the copy of kRows x kRowBytes bytes; what lies outside the matrix becomes zero. Rows that
// no asynchronous copy can reach (odd strides, misaligned views) are copied here and now, an
// element at a time.
template <int kThreads, int kRows, int kRowBytes, int kMaxUnitBytes, int kElementBytes>
__device__ __forceinline__ void fetch_bytes(uint8_t* tile, const ByteRows& source, int64_t row0,
                                            int64_t byte0) {
  constexpr int kUnitBytes = kRowBytes < kMaxUnitBytes ? kRowBytes : kMaxUnitBytes;
  if (source.unit_bytes >= kUnitBytes) {
    fetch_units<kThreads, kRows, kRowBytes, kUnitBytes>(tile, source, row0, byte0);
  } else if (source.unit_bytes >= 4) {
    fetch_units<kThreads, kRows, kRowBytes, 4>(tile, source, row0, byte0);
  } else if constexpr (kElementBytes < 4) {
    fetch_units<kThreads, kRows, kRowBytes, kElementBytes>(tile, source, row0, byte0);
  }
}

}  // namespace my_ops
