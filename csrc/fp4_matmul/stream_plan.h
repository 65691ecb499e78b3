// How the stream kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

constexpr int kStreamRows = 16;    // of the weight, a tile
constexpr int kStreamDepth = 128;  // of K, a step
// 16 warps took 18.8 us at M = 1, 8192 x 8192, 32 warps, with too few registers, 20.3.
constexpr int kStreamWarps = 24;
constexpr int kTableBytes = 256 * 128;                       // see stream_step.cuh
constexpr int kStreamTokens = 8;                             // rows of x at most
constexpr int kStreamOutputs = kStreamTokens * kStreamRows;  // of a tile

// The steps of one of `splits` blocks along K.
constexpr int stream_steps(int64_t K, int splits) {
  return static_cast<int>(ceil_div(ceil_div(K, int64_t{kStreamDepth}), int64_t{splits}));
}

constexpr int64_t stream_shared_bytes(int64_t M, int64_t K, int splits) {
  return kTableBytes + M * stream_steps(K, splits) * kStreamDepth * 2 +
         2 * kStreamWarps * kStreamOutputs * 4;
}

struct StreamPlan {
  int team_warps = 0;  // that share a tile; 0: the kernel is not for this product
  int splits = 1;
  int blocks = 0;
};

inline StreamPlan plan_stream(int64_t M, int64_t N, int64_t K, int64_t max_shared_bytes,
                              bool clusters, int sms) {
  StreamPlan plan;
  if (M > kStreamTokens || N < kStreamRows || N * K < 1 << 20 || K % 32 != 0 || N >= 1 << 30 ||
      K >= 1 << 30) {
    return plan;
  }
  const int splits = stream_shared_bytes(M, K, 1) <= max_shared_bytes ? 1 : 2;
  if (splits > 1 && (!clusters || stream_shared_bytes(M, K, 2) > max_shared_bytes)) return plan;
  const int64_t tiles = ceil_div(N, int64_t{kStreamRows});
  int64_t best = 0;
  for (const int team_warps : {24, 12, 8, 6, 4, 3}) {
    const int teams = kStreamWarps / team_warps;
    const int64_t groups = std::min<int64_t>(ceil_div(tiles, int64_t{teams}), sms / splits);
    // The longest chain of steps of a warp, and for every tile the price of adding up its sums.
    const int64_t rounds = ceil_div(tiles, groups * teams);
    const int64_t cost = rounds * (ceil_div(stream_steps(K, splits), team_warps) + 1);
    if (plan.team_warps == 0 || cost < best) {
      best = cost;
      plan = {team_warps, splits, static_cast<int>(groups) * splits};
    }
  }
  return plan;
}

}  // namespace my_ops
