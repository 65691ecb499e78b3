// How rows are divided among threads, for all kernels of this room. Needs no torch header.
//
// A thread moves a pack at a time: the 16 bytes of high-precision elements that one access can
// carry (8 of 16 bits or 4 of 32), so 2 to 8 neighbouring lanes share a block of FP4.
// A thread block is block.x packs wide and block.y rows high.
#pragma once

#include "fp4/fp4_rows.h"

namespace my_ops {

constexpr int kFp4Threads =
    128;                      // with 2 packs each the fastest bare stream of this mix on an H200
constexpr int kFp4Packs = 2;  // of a thread, a thread block's width apart

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

// A reduction ends in one atomic per thread block, so few blocks walk the whole tensor: 16 for each
// of the 132 multiprocessors of an H200.
inline Fp4Launch fp4_amax_launch(const Fp4Rows& x, int pack_elements) {
  constexpr unsigned kMaxBlocks = 2112;
  Fp4Launch launch = fp4_launch(x, pack_elements);
  if (launch.grid.x > kMaxBlocks) launch.grid.x = kMaxBlocks;
  const unsigned max_y = (kMaxBlocks + launch.grid.x - 1) / launch.grid.x;
  if (launch.grid.y > max_y) launch.grid.y = max_y;
  return launch;
}

}  // namespace my_ops
