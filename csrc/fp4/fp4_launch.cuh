// How rows are divided among threads, for all kernels of this room. Host side of .cu files, with
// the constants that kernels share. Needs no torch.
//
// A thread takes chunks of a row: 16 elements to quantize, else the 16 bytes of high-precision
// elements that one access can carry. A thread block is block.x chunks wide and block.y rows high;
// a thread's chunks are the thread block's width (or height) apart.
#pragma once

#include "common/ceil_div.h"
#include "fp4/fp4_rows.h"

namespace my_ops {

constexpr int kFp4Threads = 128;  // on an H200 up to 5 % faster than 256
constexpr int kFp4Packs = 2;      // chunks of a thread that decodes: with 2 a bare copy is fastest

// FP4 blocks of a row, and rows, of a thread block where 16 rows share their scales (block2d).
constexpr int kFp4TileColumns = 8, kFp4TileRows = 16;

// The largest grid.y there is; kernels walk over the rows beyond.
constexpr int64_t kMaxGridY = 65535;

struct Fp4Launch {
  dim3 grid;
  dim3 block;
};

// With `chunks` of a thread side by side in each of `rows` rows.
inline Fp4Launch fp4_launch(const Fp4Rows& x, int chunk_elements, int chunks, int rows,
                            dim3 block) {
  const int64_t width = int64_t{chunk_elements} * chunks * block.x;
  const int64_t height = int64_t{block.y} * rows;
  const int64_t columns = ceil_div(x.K, width);
  const int64_t row_tiles = ceil_div(x.rows, height);
  return {dim3(static_cast<unsigned>(columns),
               static_cast<unsigned>(row_tiles < kMaxGridY ? row_tiles : kMaxGridY)),
          block};
}

// With the narrowest power of two of threads that covers a row.
inline Fp4Launch fp4_launch(const Fp4Rows& x, int chunk_elements, int chunks) {
  int threads_x = 1;
  while (threads_x < kFp4Threads && int64_t{threads_x} * chunk_elements < x.K) threads_x *= 2;
  return fp4_launch(x, chunk_elements, chunks, 1, dim3(threads_x, kFp4Threads / threads_x));
}

constexpr int kAmaxPacks = 4;  // loads that a thread keeps in flight

// A reduction ends in one atomic per thread block, so few blocks walk over the whole tensor: 16 for
// each of the 132 multiprocessors of an H200.
inline Fp4Launch fp4_amax_launch(const Fp4Rows& x, int pack_elements, int packs) {
  constexpr unsigned kMaxBlocks = 2112;
  Fp4Launch launch = fp4_launch(x, pack_elements, packs);
  if (launch.grid.x > kMaxBlocks) launch.grid.x = kMaxBlocks;
  const unsigned max_y = ceil_div(kMaxBlocks, launch.grid.x);
  if (launch.grid.y > max_y) launch.grid.y = max_y;
  return launch;
}

// A small tensor is quantized by two kernels: the first leaves the amax of each of its blocks, and
// the second starts while it ends. In a CUDA graph 1, 8, 64, 128, 256 rows of 8192 bfloat16 then
// take 2.3, 2.9, 3.5, 4.4, 6.9 us. With the amax by one cluster, or by atomics, they took 3.4, 3.9,
// 5.7, 6.5, 8.0; all in one cluster of 16 blocks 2.0, 2.6, 5.2 (the first three); and with every
// block finding the whole amax for itself 1.7, 3.5 (the first two).
constexpr int kMaxAmaxParts = 1024, kAmaxPartPacks = 2;

// Where a kernel of its own finds the amax of a small dense tensor, it is one cluster, and the
// result need not be cleared first. To quantize 1, 16, 64 rows of 8192 bfloat16 in a CUDA graph
// took 3.9, 4.1, 5.8 us with it, 5.5, 5.6, 6.6 without; 128 rows would have taken 7.4 instead
// of 7.0.
constexpr int kSmallAmaxBlocks = 8, kSmallAmaxMaxThreads = 1024;
constexpr int64_t kSmallAmaxBytes = 1 << 20;

inline bool fp4_amax_is_small(const Fp4Rows& x, int64_t element_bytes) {
  return x.rows == 1 && x.K * element_bytes <= kSmallAmaxBytes;
}

inline unsigned fp4_small_amax_threads(const Fp4Rows& x, int64_t element_bytes) {
  return x.K * element_bytes <= kSmallAmaxBytes / 4 ? 512 : kSmallAmaxMaxThreads;
}

}  // namespace my_ops
