// How the weight and x come to a warp of the panel kernel: a step at a time, tile by tile, each
// into a slot of its own, as in stream_ring.cuh. Device only, needs no torch.
#pragma once

#include "fp4_matmul/panel_plan.h"
#include "fp4_matmul/stream_x.cuh"

namespace my_ops {

template <typename scalar_t_, Fp4Format kFormat_, int kTiles_, int kGroups_>
struct PanelTile : StreamTile<scalar_t_, kFormat_, 1, false, false, kGroups_> {
  static constexpr int kWarps = panel_warps(kGroups_), kThreads = kWarps * 32;
  static constexpr int kTiles = kTiles_, kRows = kTiles * kStreamRows;
  static constexpr int kTokens = 8 * kGroups_;
  // What a warp has of shared memory: the tiles of a step, and x of one.
  static constexpr int kSlotBytes = PanelTile::kCodeSlotBytes + PanelTile::kScaleSlotBytes;
  static constexpr int kWarpBytes = kTiles * kSlotBytes + kTokens * kStreamXBytes;
  static constexpr int kSharedBytes = kWarps * kWarpBytes;
  __device__ static constexpr int sums_of(int warp) { return warp * kWarpBytes; }
  static constexpr int kPitch = kRows + 4;  // of sums, so that lanes meet all banks
  static_assert(kTokens * kPitch * 4 <= kWarpBytes, "sums take its place");
  // The tile of the first step behind which x comes: in front of all tiles 15.8 us instead of 15.3
  // at M = 16, 8192 x 8192, and behind the second 15.7; of 14336 x 4096 15.0 behind the
  // first, 14.4.
  static constexpr int kXBehind = kTiles == 7 ? 1 : 0;
};

// The copies of a warp, at one of its steps. Offsets in a panel have 32 bits: with pointers of 64
// for every copy 16.2 us at M = 16, 8192 x 8192, for 16.0.
template <typename Tile>
class PanelCopies {
 public:
  __device__ __forceinline__ PanelCopies(const StreamArguments& args, uint8_t* memory,
                                         int64_t first_row, int first_k)
      : args_(args), memory_(memory), k_(first_k) {
    const int lane = threadIdx.x % 32, row = lane / 8, byte = lane % 8 * 16;
    codes_ = args.codes + first_row * (args.out.K / 2);
    scales_ = args.scales + first_row * row_scales();
    code_offset_ = row * row_codes() + byte + first_k / 2;
    scale_offset_ = first_k / Tile::kScaleBlock;
    code_slot_ = shared_address(memory) + row * 128 + (byte ^ (row & 1) << 6);
  }

  __device__ __forceinline__ void advance() {
    constexpr int kDepth = Tile::kWarps * kStreamDepth;
    k_ += kDepth;
    code_offset_ += kDepth / 2;
    scale_offset_ += kDepth / Tile::kScaleBlock;
  }

  __device__ __forceinline__ void copy_tile(int tile) const {
    const int left = static_cast<int>(args_.out.K) - k_;
    const uint32_t to = code_slot_ + tile * Tile::kSlotBytes;
    const int valid = threadIdx.x % 8 * 32 < left ? 16 : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async_to<16>(to + i * 512, codes_ + (code_offset_ + (tile * 16 + i * 4) * row_codes()),
                        valid);
    }
    if (args_.wide_scales) {
      copy_scales<Tile::kScaleBytes>(tile, left);
    } else {
      copy_scales<4>(tile, left);
    }
  }

  __device__ __forceinline__ void copy_x() const {
    StreamX<Tile>::copy(args_, memory_ + Tile::kTiles * Tile::kSlotBytes, k_);
  }

  __device__ __forceinline__ const uint8_t* codes(int tile) const {
    return memory_ + tile * Tile::kSlotBytes;
  }
  __device__ __forceinline__ const uint8_t* scales(int tile) const {
    return codes(tile) + Tile::kCodeSlotBytes;
  }
  __device__ __forceinline__ const uint8_t* x() const {
    return memory_ + Tile::kTiles * Tile::kSlotBytes;
  }

 private:
  __device__ __forceinline__ uint32_t row_codes() const {
    return static_cast<uint32_t>(args_.out.K) / 2;
  }
  __device__ __forceinline__ uint32_t row_scales() const {
    return static_cast<uint32_t>(args_.out.K) / Tile::kScaleBlock;
  }

  template <int kBytes>
  __device__ __forceinline__ void copy_scales(int tile, int left) const {
    constexpr int kCopies = Tile::kScaleBytes / kBytes;  // of a row
    const uint32_t to = shared_address(scales(tile));
#pragma unroll
    for (int i = threadIdx.x % 32; i < kStreamRows * kCopies; i += 32) {
      const int row = i / kCopies, byte = i % kCopies * kBytes;
      copy_async_to<kBytes>(to + i * kBytes,
                            scales_ + (scale_offset_ + (tile * 16 + row) * row_scales() + byte),
                            byte * Tile::kScaleBlock < left ? kBytes : 0);
    }
  }

  const StreamArguments& args_;
  uint8_t* const memory_;
  const uint8_t *codes_, *scales_;  // of the panel's first row
  int k_;
  uint32_t code_offset_, scale_offset_, code_slot_;
};

}  // namespace my_ops
