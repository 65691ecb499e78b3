// Which tile the fused kernel uses for a product: a pure function of the shape and the number of
// SMs, so that a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "fp4_matmul/ragged_rows.h"

namespace my_ops {

struct FusedPlan {
  int tokens = 0;  // rows of x in a tile: 16 to 256; 0: the kernel is not for this product
  int splits = 1;  // blocks of a cluster, each with a part of K
  int blocks = 0;
};

constexpr int kFusedRows = 128;   // of the weight, in every tile
constexpr int kFusedDepth = 256;  // of K, in a step

// How many groups of two warpgroups share the steps of a tile. Two hide more; from 128 rows of x on
// there are no registers for them.
constexpr int fused_depth_groups(int tokens) { return tokens <= 64 ? 2 : 1; }

constexpr int fused_warps(int tokens) { return kFusedRows / 16 * fused_depth_groups(tokens); }

// Of a step, from what products of 8192 x 8192 take on an H200 beside the few microseconds in which
// they start and end: 19.1 us with 16 rows of x, 20.3 (32), 24.5 (64), 32.1 (128), 53.6 (256).
constexpr double fused_step_microseconds(int tokens) {
  return tokens == 16    ? 0.85
         : tokens == 32  ? 0.92
         : tokens == 64  ? 1.2
         : tokens == 128 ? 1.65
                         : 2.7;
}

// Below 2^20 elements of the weight a launch takes longer than the product. A tile's offsets in the
// weight have 32 bits.
inline FusedPlan plan_fused(int64_t M, int64_t N, int64_t K, int sms) {
  FusedPlan plan;
  const int64_t steps = ceil_div(K, int64_t{kFusedDepth});
  if (N < 16 || N * K < 1 << 20 || K % kRaggedDepth != 0 || N >= 1 << 30 || K >= 1 << 28) {
    return plan;
  }
  double best = 0;
  for (const int tokens : {16, 32, 64, 128, 256}) {
    const int64_t tiles = ceil_div(N, int64_t{kFusedRows}) * ceil_div(M, int64_t{tokens});
    if (tiles > 1 << 30) continue;
    // Blocks of a cluster of two; four would leave SMs idle, of which 30 clusters fit.
    for (const int splits : {1, 2}) {
      if (splits > 1 && (tiles * splits > sms || steps < 8)) continue;
      const double us = static_cast<double>(ceil_div(tiles, int64_t{sms / splits})) *
                        fused_step_microseconds(tokens) *
                        static_cast<double>(ceil_div(steps, int64_t{splits}));
      if (plan.tokens == 0 || us < best) {
        best = us;
        plan = {tokens, splits, static_cast<int>(std::min<int64_t>(tiles, sms / splits)) * splits};
      }
    }
  }
  return plan;
}

}  // namespace my_ops
