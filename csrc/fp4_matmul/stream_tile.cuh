// What the stream and panel kernels are told, and the order in which a block of the stream kernel
// has its tiles. Device only, needs no torch.
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

// The last tile overlaps the one before it where N is no multiple of 16, which stores those rows.
__device__ __forceinline__ int stream_row(const StreamArguments& args, int tile) {
  return min(tile * kStreamRows, static_cast<int>(args.out.N) - kStreamRows);
}

template <typename Tile>
__device__ __forceinline__ int64_t stream_scale_bytes(const StreamArguments& args) {
  return (args.out.K + Tile::kScaleBlock - 1) / Tile::kScaleBlock;
}

}  // namespace my_ops
