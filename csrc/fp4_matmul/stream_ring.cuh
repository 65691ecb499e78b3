// How the weight comes to a warp of the stream kernel: asynchronous copies into slots of its own,
// so that no barrier is needed. Device only, needs no torch.
#pragma once

#include "fp4_matmul/product_output.cuh"
#include "fp4_matmul/stream_plan.h"
#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

struct StreamArguments {
  const uint8_t* codes;   // [N, K / 2], rows start at multiples of 16 bytes; ragged: of 8
  const uint8_t* scales;  // [N, ceil(K / block)], of 4 bytes; ragged: the first row
  bool wide_scales;       // rows of them may be copied by 16 bytes (8 for one step of MXFP4)
  const float* amax;      // null: no global scale
  const void* x;          // [M, K], rows x_stride elements apart, at multiples of 16 bytes
  int64_t x_stride;
  ProductOutput out;
  int passes;
  StreamMemory memory;  // of a warp
};

template <typename scalar_t_, Fp4Format kFormat_, int kSteps_, bool kRagged_, bool kColumns_,
          int kGroups_ = 1>
struct StreamTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr int kSteps = kSteps_;  // of a warp in each tile
  static constexpr bool kRagged = kRagged_;
  static constexpr bool kColumns = kColumns_;  // few rows of x (stream_columns.cuh)
  static constexpr int kGroups = kGroups_;     // of eight rows of x
  static constexpr int kMaxWarps = stream_max_warps(kSteps, kRagged);
  static constexpr int kScaleBlock = fp4_block_size(kFormat);
  static constexpr int kScaleBytes = kStreamDepth / kScaleBlock;  // of a row in a step
  static constexpr int kCodeSlotBytes = kStreamRows * kStreamDepth / 2;
  static constexpr int kScaleSlotBytes = kStreamRows * (kScaleBytes + scale_padding(kRagged));
  static constexpr int kScalePitch = kSteps * kScaleBytes + scale_padding(kRagged);
};

// The tiles of a block in the order of its work: a group of tiles, once for each pass, and the next
// group. They lie gridDim.x apart.
struct StreamCursor {
  int first;  // tile of the group
  int tile;
  int pass = 0;

  __device__ __forceinline__ explicit StreamCursor(int block) : first(block), tile(block) {}

  __device__ __forceinline__ int group_end(int tiles) const {
    return min(first + kStreamGroup * static_cast<int>(gridDim.x), tiles);
  }
  __device__ __forceinline__ void advance(int tiles, int passes) {
    tile += gridDim.x;
    if (tile < group_end(tiles)) return;
    if (++pass == passes) {
      pass = 0;
      first += kStreamGroup * gridDim.x;
    }
    tile = first;
  }
};

// The last tile overlaps the one before it where N is no multiple of 16; both write the same.
__device__ __forceinline__ int stream_row(const StreamArguments& args, int tile) {
  return min(tile * kStreamRows, static_cast<int>(args.out.N) - kStreamRows);
}

template <typename Tile>
__device__ __forceinline__ int64_t stream_scale_bytes(const StreamArguments& args) {
  return (args.out.K + Tile::kScaleBlock - 1) / Tile::kScaleBlock;
}

// A step in shared memory is 16 rows of 128 bytes, the halves of every other row swapped: eight
// lanes that read 16 bytes each of two rows then meet no bank twice. Beyond K it is zeros. The
// scales of a tile come with its first step, by 16 bytes where they can: by 4 the kernel took 1 us
// longer.
template <typename Tile>
class StreamRing {
 public:
  __device__ __forceinline__ StreamRing(const StreamArguments& args, uint8_t* slots, int first_k)
      : args_(args), slots_(slots), first_k_(first_k) {
    const int lane = threadIdx.x % 32;
    const int row = lane / kUnits, byte = lane % kUnits * kUnitBytes;
    lane_codes_ = args.codes + row * (args.out.K / 2) + byte;
    to_ = row * 128 + (byte ^ (row & 1) << 6);
  }

  // Starts the copies of a step.
  __device__ __forceinline__ void load(const StreamCursor& at, int step, int tiles, int pass_k) {
    if (at.tile < tiles) {
      const int64_t row = stream_row(args_, at.tile);
      const int K = static_cast<int>(args_.out.K);
      const int k = first_k_ + at.pass * pass_k + step * kStreamDepth;
      const int lane = threadIdx.x % 32;
      const uint8_t* from = lane_codes_ + row * (K / 2) + k / 2;
      const int valid = k + lane % kUnits * kUnitBytes * 2 < K ? kUnitBytes : 0;
      uint8_t* const to = slots_ + step_slot(step) * Tile::kCodeSlotBytes + to_;
#pragma unroll
      for (int i = 0; i < kStreamRows; i += 32 / kUnits) {
        copy_async<kUnitBytes>(to + i * 128, from, valid);
        from += static_cast<uint32_t>(K / 2) * (32 / kUnits);
      }
      if (step == 0) load_scales(row, k);
    }
    copy_async_commit();
    if (Tile::kSteps == 1) slot_ ^= 1;
  }

  // Where step `step` of the tile that was loaded first of those in the ring lies.
  __device__ __forceinline__ const uint8_t* codes(int step) const {
    return slots_ + step_slot(step) * Tile::kCodeSlotBytes;
  }
  __device__ __forceinline__ const uint8_t* scales(int step) const {
    return slots_ + kStreamSlots * Tile::kCodeSlotBytes + step_slot(0) * Tile::kScaleSlotBytes +
           step * Tile::kScaleBytes;
  }

 private:
  static constexpr int kUnitBytes = Tile::kRagged ? 8 : 16;  // of codes, in a copy
  static constexpr int kUnits = kStreamDepth / 2 / kUnitBytes;
  static constexpr int kRowBytes = Tile::kSteps * Tile::kScaleBytes;  // of scales

  // A warp has the slots of its steps, or two in turn for its one step.
  __device__ __forceinline__ int step_slot(int step) const {
    return Tile::kSteps == 1 ? slot_ : step;
  }

  __device__ __forceinline__ void load_scales(int64_t row, int k) {
    uint8_t* const to =
        slots_ + kStreamSlots * Tile::kCodeSlotBytes + step_slot(0) * Tile::kScaleSlotBytes;
    if constexpr (Tile::kRagged) {
      copy_scale_words(to, row, k);
    } else if (args_.wide_scales) {
      copy_scales<(kRowBytes >= 16 ? 16 : 8)>(to, row, k);
    } else {
      copy_scales<4>(to, row, k);
    }
  }

  template <int kBytes>
  __device__ __forceinline__ void copy_scales(uint8_t* to, int64_t row, int k) {
    const int row_bytes = static_cast<int>(args_.out.K) / Tile::kScaleBlock;
    const uint8_t* const from = args_.scales + row * row_bytes + k / Tile::kScaleBlock;
#pragma unroll
    for (int i = threadIdx.x % 32; i < kStreamRows * kRowBytes / kBytes; i += 32) {
      const int r = i / (kRowBytes / kBytes), byte = i % (kRowBytes / kBytes) * kBytes;
      const int left = row_bytes - k / Tile::kScaleBlock - byte;
      copy_async<kBytes>(to + r * kRowBytes + byte, from + r * row_bytes + byte,
                         min(max(left, 0), kBytes));
    }
  }

  __device__ __forceinline__ void copy_scale_words(uint8_t* to, int64_t row, int k) {
    constexpr int kWords = Tile::kScalePitch / 4;
    const int64_t row_bytes = stream_scale_bytes<Tile>(args_);
#pragma unroll
    for (int i = threadIdx.x % 32; i < kStreamRows * kWords; i += 32) {
      const int64_t start = (row + i / kWords) * row_bytes;
      const int byte = k / Tile::kScaleBlock - scale_shift(start) + i % kWords * 4;
      const int left = static_cast<int>(row_bytes) - byte;
      copy_async_bytes(shared_address(to) + i * 4, args_.scales + start + byte, left);
    }
  }

  const StreamArguments& args_;
  uint8_t* slots_;
  int first_k_;
  const uint8_t* lane_codes_;
  int to_;
  int slot_ = 0;
};

}  // namespace my_ops
