// How the stream kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "fp4_matmul/ragged_rows.h"

namespace my_ops {

// What a block asks of shared memory at least where no second one shall run beside it: where two
// fit, some SMs get two while others have none. 9.6 us at M = 1, 4000 x 4128, for 6.8, and 6.6 for
// 4.6 in box panels at 4096 x 4096.
constexpr int kMoreThanHalfAnSm = 116 * 1024;

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
constexpr int kStreamGroup = 4;    // tiles between two barriers of a block
constexpr int kStreamColumns = 2;  // rows of x at most for stream_columns.cuh

// One more has a ragged end of K: with two steps for each warp 9 would share K = 4112.
constexpr int stream_max_warps(int steps, bool ragged) {
  return kStreamWarps + (steps == 1 && ragged ? 1 : 0);
}

// What a warp has of shared memory: its slots, its part of x, and the sums of a group of tiles, in
// the place of x where that is not needed again for another pass.
struct StreamMemory {
  int x = 0;  // where it begins
  int sums = 0;
  int bytes = 0;
};

constexpr StreamMemory stream_memory(int rows, int scale_block, bool ragged, bool one_pass) {
  const int slot =
      kStreamRows * (kStreamDepth / 2 + kStreamDepth / scale_block + scale_padding(ragged));
  const int x_bytes = rows * kStreamSteps * kStreamDepth * 2;
  const int sum_bytes = kStreamGroup * kStreamRows * kStreamTokens * 4;
  StreamMemory memory;
  memory.x = kStreamSlots * slot;
  memory.sums = memory.x + (one_pass ? 0 : x_bytes);
  memory.bytes = std::max(memory.x + x_bytes, memory.sums + sum_bytes);
  return memory;
}

struct StreamPlan {
  int warps = 0;   // of a block; 0: the kernel is not for this product
  int steps = 1;   // of a warp in each tile and pass
  int passes = 1;  // over the tiles, each with its part of K
  int blocks = 0;
  StreamMemory memory;  // of a warp
};

inline StreamPlan plan_stream(int64_t M, int64_t N, int64_t K, int scale_block,
                              int64_t max_shared_bytes, int sms) {
  StreamPlan plan;
  if (M > kStreamTokens || N < kStreamRows || N * K < 1 << 20 || K % kRaggedDepth != 0 ||
      N >= 1 << 30 || K >= 1 << 30) {
    return plan;
  }
  const bool ragged = rows_are_ragged(K, scale_block);
  const int64_t steps = ceil_div(K, int64_t{kStreamDepth});
  int64_t fit = 0;
  for (const bool one_pass : {true, false}) {
    plan.memory = stream_memory(static_cast<int>(M), scale_block, ragged, one_pass);
    fit = max_shared_bytes / plan.memory.bytes;
    plan.passes =
        static_cast<int>(ceil_div(steps, std::min<int64_t>(kStreamWarps, fit) * kStreamSteps));
    if (plan.passes == 1) break;
  }
  const auto pass_steps = static_cast<int>(ceil_div(steps, int64_t{plan.passes}));
  plan.steps = pass_steps > std::min<int64_t>(stream_max_warps(1, ragged), fit) ? kStreamSteps : 1;
  plan.warps = ceil_div(pass_steps, plan.steps);
  const int64_t tiles = ceil_div(N, int64_t{kStreamRows});
  plan.blocks =
      static_cast<int>(std::min<int64_t>(tiles, sms * std::max(kStreamWarps / plan.warps, 1)));
  return plan;
}

}  // namespace my_ops
