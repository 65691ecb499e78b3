// The arguments and the shared memory of the kernel to which the copy engine brings panels
// (box_panel_kernel.cuh). Device only, needs no torch.
#pragma once

#include <cuda.h>

#include "fp4_matmul/panel_plan.h"
#include "fp4_matmul/stream_tile.cuh"

namespace my_ops {

struct BoxPanelArguments {
  StreamArguments stream;
  // All rows of a panel by 128 bytes of codes and by 16 of scales, all rows of x by four parts.
  CUtensorMap codes, scales, x;
};

template <typename scalar_t_, Fp4Format kFormat_, int kTiles_, int kGroups_>
struct BoxPanelTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr int kScaleBlock = fp4_block_size(kFormat);
  static constexpr int kTiles = kTiles_, kRows = kTiles * kStreamRows;
  static constexpr int kGroups = kGroups_, kTokens = 8 * kGroups;  // of rows of x
  // Sums of 24 rows of x with panels of four tiles take more than the registers of 16 warps.
  static constexpr int kWarps = kGroups == 3 ? 12 : 16, kThreads = kWarps * 32;
  static constexpr int kTeams = kWarps / 2;

  // What a team has of shared memory: a step of x, of codes, and of scales, for MXFP4 with those of
  // the step beside it. Eight lanes read the same 16 bytes of four parts of two rows of x at a
  // time, which lie in different banks, as rows of the swizzle follow each other.
  static constexpr int kXParts = kStreamDepth / 64, kXRowBytes = kXParts * 128;
  static constexpr int kCodes = kTokens * kXRowBytes, kCodeBytes = kRows * 128;
  static constexpr int kScaleRowBytes = 16;
  static constexpr int kScales = kCodes + kCodeBytes, kScaleBytes = kRows * kScaleRowBytes;
  static constexpr int kTeamBytes = (kScales + kScaleBytes + 1023) / 1024 * 1024;
  static_assert(kCodes % 1024 == 0, "where the hardware's swizzle begins anew");

  // The sums of its two warps take the place of all that.
  static constexpr int kPitch = kRows + 4;  // so that lanes meet all banks
  static constexpr int kSumBytes = kTokens * kPitch * 4;
  static_assert(2 * kSumBytes <= kTeamBytes, "sums take its place");
  __device__ static constexpr int sums_of(int warp) {
    return warp / 2 * kTeamBytes + warp % 2 * kSumBytes;
  }

  static constexpr int kBarriers = kTeams * kTeamBytes;  // where they begin, two of each team
  static constexpr int kBytes = kBarriers + kTeams * 2 * 8;
  static constexpr int kSharedBytes = kBytes < kMoreThanHalfAnSm ? kMoreThanHalfAnSm : kBytes;

  // Steps of the panel that are on their way to L2 before the kernel in front is done: 16 to 28
  // KB. M = 16, 8192 x 8192: 14.1 us with none, 14.0 with one, 13.6 with two or four.
  static constexpr int kPrefetched = kTiles == 2 ? 4 : 2;
  static constexpr bool kInTurn = kTiles == 7;  // else some of its registers are spilled
};

}  // namespace my_ops
