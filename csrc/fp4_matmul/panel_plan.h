// How the panel kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <cstdint>

#include "common/ceil_div.h"
#include "fp4_matmul/stream_plan.h"

namespace my_ops {

constexpr int kPanelTokens = 16;  // rows of x at most

// Two groups of eight rows of x, with the sums of a panel, take 210 to 255 registers of a lane; one
// group takes 128. With 12 warps for two groups, of 168 registers, 16.3 us at M = 16, 8192 x 8192,
// for 15.8.
constexpr int panel_warps(int groups) { return groups == 1 ? 16 : 8; }

struct PanelPlan {
  int tiles = 0;   // of 16 rows of the weight, in a panel; 0: the kernel is not for this product
  int groups = 1;  // of eight rows of x
  int panels = 0;
};

// Bytes within a panel of seven tiles, 56 for each column, are counted in 32 bits.
constexpr int64_t kPanelMaxDepth = int64_t{1} << 26;

// Up to eight rows of x are for the stream kernel, unless it would pass over K more than once:
// 14.3 us at M = 8, N = 4096, K = 14336, and 12.6 in panels.
inline PanelPlan plan_panel(int64_t M, int64_t N, int64_t K, int scale_block, int sms) {
  PanelPlan plan;
  const int64_t one_pass = int64_t{kStreamWarps} * kStreamSteps * kStreamDepth;
  if (M > kPanelTokens || (M <= kStreamTokens && K <= one_pass) || N * K < 1 << 20 ||
      rows_are_ragged(K, scale_block) || N >= 1 << 30 || K >= kPanelMaxDepth) {
    return plan;
  }
  plan.groups = M <= kStreamTokens ? 1 : 2;
  int64_t best = 0;
  for (const int tiles : {2, 4, 7}) {
    const int64_t panels = ceil_div(N, int64_t{tiles} * kStreamRows);
    const int64_t waves = ceil_div(panels, int64_t{sms});
    const int64_t cost = waves * (tiles + 1);  // beginning and end take the time of a tile
    if (N < tiles * kStreamRows || (plan.groups == 1 && (tiles > 2 || waves > 1))) continue;
    if (plan.tiles == 0 || cost < best) {
      best = cost;
      plan.tiles = tiles;
      plan.panels = static_cast<int>(panels);
    }
  }
  return plan;
}

}  // namespace my_ops
