// How the weight comes to a warp of the stream kernel: asynchronous copies into slots of its own,
// so that no barrier is needed. Device only, needs no torch.
#pragma once

#include "common/overlap.cuh"
#include "fp4_matmul/stream_tile.cuh"

namespace my_ops {

// A step in shared memory is 16 rows of 128 bytes, the halves of every other row swapped: eight
// lanes that read 16 bytes each of two rows then meet no bank twice. Beyond K it is zeros. The
// scales of a tile come with its first step, by 16 bytes where they can: by 4 the kernel took 1 us
// longer.
template <typename Tile>
class StreamRing {
 public:
  // Where a lane's copies of a tile and pass begin.
  struct Source {
    const uint8_t *codes, *scales;
    int k;
    int64_t row;
  };

  __device__ __forceinline__ StreamRing(const StreamArguments& args, uint8_t* slots, int first_k)
      : args_(args), slots_(slots), first_k_(first_k) {
    const int lane = threadIdx.x % 32;
    const int row = lane / kUnits, byte = lane % kUnits * kUnitBytes;
    lane_codes_ = args.codes + row * row_codes() + byte;
    to_ = shared_address(slots) + row * 128 + (byte ^ (row & 1) << 6);
    constexpr int kCopies = kRowBytes / kWideBytes;
    lane_scales_ = args.scales + lane / kCopies * row_scales() + lane % kCopies * kWideBytes;
  }

  __device__ __forceinline__ Source source(const StreamCursor& at, int pass_k) const {
    const int64_t row = stream_row(args_, at.tile);
    const int k = first_k_ + at.pass * pass_k;
    return {lane_codes_ + row * row_codes() + k / 2,
            lane_scales_ + row * row_scales() + k / Tile::kScaleBlock, k, row};
  }

  // Starts the copies of a step.
  __device__ __forceinline__ void load(const StreamCursor& at, int step, int tiles, int pass_k) {
    if (at.tile < tiles) load(source(at, pass_k), step);
    commit();
  }
  __device__ __forceinline__ void load(const Source& source, int step) const {
    const int lane = threadIdx.x % 32;
    const int left = static_cast<int>(args_.out.K) - source.k - step * kStreamDepth;
    const int valid = lane % kUnits * kUnitBytes * 2 < left ? kUnitBytes : 0;
    const uint32_t to = to_ + step_slot(step) * Tile::kCodeSlotBytes;
    const uint8_t* from = source.codes + step * (kStreamDepth / 2);
#pragma unroll
    for (int i = 0; i < kStreamRows; i += 32 / kUnits) {
      copy_async_to<kUnitBytes>(to + i * 128, from, valid);
      from += row_codes() * (32 / kUnits);
    }
    if (step == 0) load_scales(source);
  }
  __device__ __forceinline__ void commit() {
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
  static constexpr int kWideBytes = kRowBytes >= 16 ? 16 : 8;
  static_assert(kStreamRows * kRowBytes / kWideBytes <= 32);

  // A warp has the slots of its steps, or two in turn for its one step.
  __device__ __forceinline__ int step_slot(int step) const {
    return Tile::kSteps == 1 ? slot_ : step;
  }

  __device__ __forceinline__ uint32_t row_codes() const {
    return static_cast<uint32_t>(args_.out.K) / 2;
  }
  __device__ __forceinline__ uint32_t row_scales() const {
    return static_cast<uint32_t>(stream_scale_bytes<Tile>(args_));
  }

  __device__ __forceinline__ void load_scales(const Source& source) const {
    uint8_t* const to =
        slots_ + kStreamSlots * Tile::kCodeSlotBytes + step_slot(0) * Tile::kScaleSlotBytes;
    if constexpr (Tile::kRagged) {
      copy_scale_words(to, source.row, source.k);
    } else if (args_.wide_scales) {
      constexpr int kCopies = kRowBytes / kWideBytes;
      const int lane = threadIdx.x % 32;
      const int left = static_cast<int>(row_scales()) - source.k / Tile::kScaleBlock -
                       lane % kCopies * kWideBytes;
      if (kStreamRows * kCopies >= 32 || lane < kStreamRows * kCopies) {
        copy_async_to<kWideBytes>(shared_address(to) + lane * kWideBytes, source.scales,
                                  left > 0 ? min(left, kWideBytes) : 0);
      }
    } else {
      copy_scales(to, source.row, source.k);
    }
  }

  // By 4 bytes.
  __device__ __forceinline__ void copy_scales(uint8_t* to, int64_t row, int k) const {
    constexpr int kBytes = 4;
    const int row_bytes = row_scales();
    const uint8_t* const from = args_.scales + row * row_bytes + k / Tile::kScaleBlock;
#pragma unroll
    for (int i = threadIdx.x % 32; i < kStreamRows * kRowBytes / kBytes; i += 32) {
      const int r = i / (kRowBytes / kBytes), byte = i % (kRowBytes / kBytes) * kBytes;
      const int left = row_bytes - k / Tile::kScaleBlock - byte;
      copy_async<kBytes>(to + r * kRowBytes + byte, from + r * row_bytes + byte,
                         min(max(left, 0), kBytes));
    }
  }

  __device__ __forceinline__ void copy_scale_words(uint8_t* to, int64_t row, int k) const {
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
  const uint8_t *lane_codes_, *lane_scales_;
  uint32_t to_;
  int slot_ = 0;
};

// A block that starts early has the beginning of its first tile on its way to L2 while it waits:
// 0.2 to 0.4 us less. More comes in the way of x: 12.9 us for 64 KB at M = 1, 8192 x 8192,
// for 11.9.
__device__ __forceinline__ void prefetch_first_rows(const StreamArguments& args) {
  constexpr int64_t kBytes = 20 * 1024;
  const int64_t row_codes = args.out.K / 2;
  if (threadIdx.x > 0) return;
  prefetch_to_l2(args.codes + stream_row(args, blockIdx.x) * row_codes,
                 static_cast<int>(min(kBytes, kStreamRows * row_codes)));
}

}  // namespace my_ops
