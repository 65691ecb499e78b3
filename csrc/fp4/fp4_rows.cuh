// How rows are divided among threads, for all kernels of this room. Needs no torch header.
//
// A thread moves a pack at a time: the 16 bytes of high-precision elements that one access can
// carry (8 of 16 bits or 4 of 32), so 2 to 8 neighbouring lanes share a block of FP4.
// A thread block is `threads_x` packs wide and `threads_y` rows high.
#pragma once

#include <cstdint>

namespace my_ops {

// A row-major matrix of which each row is dense.
struct Fp4Rows {
  int64_t rows;
  int64_t K;
  int64_t row_stride;  // of the high-precision side, in elements
};

constexpr int kFp4Threads = 128;  // 128 and 2 packs each stream fastest on an H200
constexpr int kFp4Packs = 2;      // packs of a thread, side by side with the next thread's

// Dense rows of whole blocks are one long row: no tails, no row arithmetic.
inline Fp4Rows fp4_collapse(Fp4Rows x, int64_t whole) {
  if (x.row_stride == x.K && x.K % whole == 0) return {1, x.rows * x.K, x.rows * x.K};
  return x;
}

struct Fp4Launch {
  dim3 grid;
  dim3 block;
};

// The narrowest power of two of threads that covers a row, and at least a block's 8 lanes.
inline Fp4Launch fp4_launch(const Fp4Rows& x, int pack_elements) {
  const int64_t packs = (x.K + pack_elements - 1) / pack_elements;
  int threads_x = 8;
  while (threads_x < kFp4Threads && threads_x < packs) threads_x *= 2;
  const int threads_y = kFp4Threads / threads_x;
  const int64_t columns = (packs + threads_x * kFp4Packs - 1) / (threads_x * kFp4Packs);
  const int64_t row_tiles = (x.rows + threads_y - 1) / threads_y;
  constexpr int64_t kMaxGridY = 65535;  // the kernels walk on from there
  return {dim3(static_cast<unsigned>(columns),
               static_cast<unsigned>(row_tiles < kMaxGridY ? row_tiles : kMaxGridY)),
          dim3(threads_x, threads_y)};
}

}  // namespace my_ops
