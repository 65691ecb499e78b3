// How the stream kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

constexpr int kStreamTokens = 8;   // rows of x at most
constexpr int kStreamRows = 16;    // of the weight, a tile
constexpr int kStreamDepth = 256;  // of K, a step
// x lies in registers, 32 a step: 16 warps have room for two, and 32 warps, with half the
// registers, took 20 us for 16.
constexpr int kStreamWarps = 16;
constexpr int kStreamSteps = 2;
// Steps on their way to each warp. Two of 16 warps are 72 KB of an SM, enough for the speed of
// memory. With four the first step waits behind the last: 15.6 us at M = 1, 8192 x 8192, for 13.7.
constexpr int kStreamSlots = 2;
constexpr int kStreamGroup = 4;  // tiles between two barriers of a block

constexpr int64_t stream_shared_bytes(int warps, int scale_block) {
  const int slot = kStreamRows * (kStreamDepth / 2 + kStreamDepth / scale_block);
  return warps * (kStreamSlots * slot + kStreamGroup * kStreamRows * kStreamTokens * 4);
}

struct StreamPlan {
  int warps = 0;   // of a block; 0: the kernel is not for this product
  int steps = 1;   // of a warp in each tile and pass
  int passes = 1;  // over the tiles, each with its part of K
  int blocks = 0;
};

// K is a multiple of what keeps rows of scales at multiples of 4 bytes.
inline StreamPlan plan_stream(int64_t M, int64_t N, int64_t K, int scale_block,
                              int64_t max_shared_bytes, int sms) {
  StreamPlan plan;
  if (M > kStreamTokens || N < kStreamRows || N * K < 1 << 20 || K % (4 * scale_block) != 0 ||
      N >= 1 << 30 || K >= 1 << 30) {
    return plan;
  }
  const auto warps = static_cast<int>(
      std::min<int64_t>(kStreamWarps, max_shared_bytes / stream_shared_bytes(1, scale_block)));
  const int64_t steps = ceil_div(K, int64_t{kStreamDepth});
  plan.passes = static_cast<int>(ceil_div(steps, int64_t{warps * kStreamSteps}));
  const auto pass_steps = static_cast<int>(ceil_div(steps, int64_t{plan.passes}));
  plan.steps = pass_steps > warps ? kStreamSteps : 1;
  plan.warps = ceil_div(pass_steps, plan.steps);
  const int64_t tiles = ceil_div(N, int64_t{kStreamRows});
  plan.blocks = static_cast<int>(std::min<int64_t>(tiles, sms * (kStreamWarps / plan.warps)));
  return plan;
}

}  // namespace my_ops
