// Rows of a ragged weight (ragged_rows.h) in shared memory as they lie in memory: 16 of them are
// one stretch of a multiple of 16 bytes, wherever each begins. Device only, needs no torch.
#pragma once

#include "common/fp4.h"
#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

class RaggedRows {
 public:
  // The rows from `first` on of all N.
  __device__ __forceinline__ RaggedRows(const uint8_t* all, int64_t first, int64_t N, int row_bytes,
                                        uint32_t shared)
      : row_bytes_(row_bytes), shared_(shared) {
    const uint8_t* const begin = all + first * row_bytes;
    phase_ = static_cast<int>(reinterpret_cast<uintptr_t>(begin) % 16);
    from_ = begin - phase_;
    left_ = (N - first) * row_bytes + phase_;
  }

  // All threads of the block start the copies of a tile. Eight lanes copy a line of 128 bytes at a
  // time, so they take what lies in one.
  __device__ __forceinline__ void copy(int tile) const {
    const int start = tile * 16 * row_bytes_, size = 16 * row_bytes_ + phase_;
    const uint8_t* const from = from_ + start;
    const uint32_t to = shared_ + tile * pitch();
    const int thread = threadIdx.x;
    const int whole = static_cast<int>(min(int64_t{size + 15}, left_ - start)) / 16 * 16;
#pragma unroll 4
    for (int i = thread * 16 - static_cast<int>(reinterpret_cast<uintptr_t>(from) % 128); i < whole;
         i += blockDim.x * 16) {
      if (i >= 0) copy_async_to<16>(to + i, from + i, 16);
    }
    // The end of the weight.
    if (whole < size && thread < 4) {
      const int i = whole + thread * 4;
      copy_async_bytes(to + i, from + i, size - i);
      __threadfence_block();  // before the arrival at the tile's barrier, which follows copies
    }
  }

  // The shared address of a row of the first tile, and how far behind the next tile has its own:
  // between them is room for what copies by 16 bytes bring along.
  __device__ __forceinline__ uint32_t row(int row) const {
    return shared_ + phase_ + row * row_bytes_;
  }
  __device__ __forceinline__ int pitch() const { return 16 * row_bytes_ + 16; }

 private:
  int row_bytes_;
  uint32_t shared_;
  int phase_;
  const uint8_t* from_;  // the multiple of 16 at or before the first row
  int64_t left_;         // bytes from there to the end of the weight
};

}  // namespace my_ops
