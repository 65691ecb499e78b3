// How a ragged weight (ragged_rows.h) and x come to a block of the stretch kernel: by the copy
// engine, as they lie in memory. Eight rows of the weight are one stretch, wherever each begins.
// Device only, sm_90a, needs no torch.
//
// One thread does all of it: x in front of the weight, and of each tile the scales in front of the
// codes, as the engine takes one copy after another and a tile waits for both. It needs few copies
// and large ones, and both ends of each alike within lines of memory (kStretchLine). With rows of x
// and of scales by themselves, and ends that were not alike, it took 13 us; copies by the warps
// that want them, of codes by 8 bytes, 11.0.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/shared_words.cuh"
#include "fp4_matmul/slot_writes.cuh"
#include "fp4_matmul/stream_tile.cuh"
#include "fp4_matmul/stretch_plan.h"

namespace my_ops {

struct StretchArguments : StreamArguments {
  StretchPlan plan;
};

// The tiles of a block. Blocks that begin late, when the kernel in front of this one has left their
// SM, have the last numbers: they have a tile less, where some have.
struct StretchTiles {
  int first, count;

  __device__ __forceinline__ explicit StretchTiles(const StretchPlan& plan) {
    const int block = blockIdx.x, each = plan.tiles / plan.blocks;
    const int more = plan.tiles - each * plan.blocks;
    first = block * each + min(block, more);
    count = each + (block < more ? 1 : 0);
  }
  __device__ __forceinline__ int first_row() const { return first * kStretchTileRows; }
};

// Rows of codes or of scales.
class StretchRows {
 public:
  // The rows from `first` on of all N.
  __device__ __forceinline__ StretchRows(const uint8_t* all, int64_t first, int64_t N,
                                         int row_bytes)
      : begin_(all + first * row_bytes), end_(all + N * row_bytes), row_bytes_(row_bytes) {}

  // Where a tile begins in its slot: as in a line of memory.
  __device__ __forceinline__ uint32_t phase(int tile) const {
    return (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(begin_)) +
            static_cast<uint32_t>(tile) * kStretchTileRows * row_bytes_) %
           kStretchLine;
  }
  __device__ __forceinline__ const uint8_t* begin() const { return begin_; }

  // One thread. The copy counts at `barrier`, which it does not arrive at.
  __device__ __forceinline__ void copy(uint32_t to, int tile, int rows, uint32_t barrier) const {
    const int before = static_cast<int>(phase(tile)) % 16;
    const uint8_t* const from = begin_ + tile * tile_bytes() - before;
    const int size = rows * row_bytes_ + before;
    to += phase(tile) - before;
    int whole = (size + 15) / 16 * 16;
    if (end_ - from < whole) {  // the end of the weight
      whole = static_cast<int>(end_ - from) / 16 * 16;
#pragma unroll 1
      for (int i = whole; i < size; ++i) store_to_slot(to + i, from[i]);
    }
    sm90::expect(barrier, whole);
    if (whole > 0) sm90::bulk_copy(to, from, whole, barrier);
  }

  // All threads: E8M0 scales that fit behind the `rows` that the weight has of a tile.
  __device__ __forceinline__ void clear_behind(uint32_t to, int tile, int rows) const {
    const int phase = static_cast<int>(this->phase(tile));
#pragma unroll 1
    for (int i = rows * row_bytes_ + threadIdx.x; i < kStretchTileRows * row_bytes_;
         i += blockDim.x) {
      store_shared1(to + phase + i, 127);
    }
  }

 private:
  __device__ __forceinline__ int64_t tile_bytes() const {
    return int64_t{kStretchTileRows} * row_bytes_;
  }
  const uint8_t *begin_, *end_;
  int row_bytes_;
};

// Shared memory of a block: barriers of x and of the slots, full and empty; x; slots; sums.
class StretchMemory {
 public:
  __device__ __forceinline__ StretchMemory(const StretchArguments& args, uint32_t shared)
      : shared_(shared),
        x_(shared + kStretchHead +
           static_cast<uint32_t>(reinterpret_cast<uintptr_t>(args.x) % kStretchLine)),
        x_row_(static_cast<int>(args.out.K) * 2),
        plan_(args.plan) {}

  __device__ __forceinline__ uint32_t x_barrier() const { return shared_; }
  __device__ __forceinline__ uint32_t full(int slot) const { return shared_ + 16 + slot * 16; }
  __device__ __forceinline__ uint32_t empty(int slot) const { return full(slot) + 8; }
  __device__ __forceinline__ uint32_t x(int row) const { return x_ + row * x_row_; }
  __device__ __forceinline__ uint32_t codes(int slot) const {
    return shared_ + plan_.slots_at + slot * plan_.slot_bytes;
  }
  __device__ __forceinline__ uint32_t scales(int slot) const {
    return codes(slot) + plan_.slot_codes;
  }
  // Of a warp, [tile][row of x][row]. In x's place they spare the end of each row, which warps take
  // late.
  __device__ __forceinline__ uint32_t sums(int warp, int M) const {
    if (!plan_.sums_take_x) return codes(plan_.slots) + warp * plan_.sums;
    return warp < M ? x(warp) : x(warp - M) + second_sums();
  }
  // From those of one warp to the next's.
  __device__ __forceinline__ uint32_t sums_behind(uint32_t sums, int warp, int M) const {
    if (!plan_.sums_take_x) return sums + plan_.sums;
    return sums + x_row_ + (warp == M - 1 ? second_sums() - M * x_row_ : 0);
  }

  __device__ __forceinline__ void init_barriers() const {
    sm90::init_barrier(x_barrier(), 1);
    for (int slot = 0; slot < plan_.slots; ++slot) {
      sm90::init_barrier(full(slot), 1);
      sm90::init_barrier(empty(slot), plan_.warps);
    }
    sm90::fence_barrier_init();
  }

  // One thread. Rows of x that lie side by side are one stretch, in pieces.
  __device__ __forceinline__ void copy_x(const StretchArguments& args) const {
    const auto* const from = static_cast<const uint8_t*>(args.x);
    const int M = static_cast<int>(args.out.M);
    sm90::arrive_expecting(x_barrier(), M * x_row_);
    const bool dense = args.x_stride * 2 == x_row_;
    const int rows = dense ? (M + 3) / 4 : 1;
#pragma unroll 1
    for (int row = 0; row < M; row += rows) {
      sm90::bulk_copy(x(row), from + row * args.x_stride * 2, min(rows, M - row) * x_row_,
                      x_barrier());
    }
  }

 private:
  __device__ __forceinline__ int second_sums() const { return plan_.warps * kStretchPart; }

  uint32_t shared_, x_;
  int x_row_;
  const StretchPlan& plan_;
};

}  // namespace my_ops
