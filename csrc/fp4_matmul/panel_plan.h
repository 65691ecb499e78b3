// How the panel kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
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
  int warps = 0;  // of a block, of a ragged weight
};

// Bytes within a panel of seven tiles, 56 for each column, are counted in 32 bits.
constexpr int64_t kPanelMaxDepth = int64_t{1} << 26;

// Panels of as many tiles as take the least time: beginning and end take that of a tile.
inline void divide_into_panels(PanelPlan& plan, int64_t N, int sms) {
  int64_t best = 0;
  for (const int tiles : {2, 4, 7}) {
    const int64_t panels = ceil_div(N, int64_t{tiles} * kStreamRows);
    const int64_t cost = ceil_div(panels, int64_t{sms}) * (tiles + 1);
    if (N >= tiles * kStreamRows && (plan.tiles == 0 || cost < best)) {
      best = cost;
      plan.tiles = tiles;
      plan.panels = static_cast<int>(panels);
    }
  }
}

constexpr int kBoxPanelTokens = 32;  // rows of x at most

// For panels that the copy engine brings (box_panel_kernel.cuh), where it can (rows of scales are
// multiples of 16 bytes) and where it is faster than the kernel that takes the product otherwise.
// Its maps take time to come, so a short K is for the others. Microseconds, here | there.
inline PanelPlan plan_box_panel(int64_t M, int64_t N, int64_t K, int scale_block, int sms) {
  constexpr int kRowBytes = 16;
  PanelPlan plan;
  if (M > kBoxPanelTokens || N * K < 1 << 20 || K % (kRowBytes * scale_block) != 0 ||
      K >= kPanelMaxDepth || N >= 1 << 30) {
    return plan;
  }
  divide_into_panels(plan, N, sms);
  const bool small = plan.tiles == 2, at_once = plan.panels <= sms && plan.tiles != 7;
  const auto plan_if = [&](bool quicker, int groups) {
    plan.groups = groups;
    return quicker ? plan : PanelPlan{};
  };
  if (M <= kStreamTokens) {
    // The stream kernel. All panels at once and on most SMs: M = 8, 4096 x 4096 4.6 | 5.0, 8192 x
    // 14336 18.9 | 22.4, but 2048 x 8192 6.5 | 5.8. It spares one or two rows some of the
    // arithmetic: M = 1, 8192 x 4096 7.4 | 7.2.
    const int least = small ? 2048 : (M <= kStreamColumns ? 6144 : 3072);
    return plan_if(at_once && plan.panels * 5 >= sms * 4 && K >= least, 1);
  }
  if (M <= kPanelTokens) {
    // The panel kernel. M = 16, 8192 x 2560 7.0 | 7.65, 8192 x 2048 5.9 | 5.75.
    return plan_if(K >= (small ? 1536 : (plan.tiles == 4 ? 2560 : 3072)), 2);
  }
  // The fused kernel. M = 32, 4096 x 4096 6.6 | 9.4, 4096 x 14336 17.1 | 19.6; M = 24, 8192 x 8192
  // 15.8 | 17.3, but M = 32 18.6 | 17.3.
  const bool most_at_once = at_once && plan.panels * 5 >= sms * 3;
  return small ? plan_if(most_at_once && K >= 2048, 4)
               : plan_if(most_at_once && M <= 24 && K >= 4096, 3);
}

// For the panel kernel. Up to eight rows of x are for the stream kernel, unless it would pass over
// K more than once: 14.3 us at M = 8, N = 4096, K = 14336, and 12.6 in panels.
inline PanelPlan plan_panel(int64_t M, int64_t N, int64_t K, int scale_block, int sms) {
  PanelPlan plan;
  const int64_t one_pass = int64_t{kStreamWarps} * kStreamSteps * kStreamDepth;
  if (M > kPanelTokens || (M <= kStreamTokens && K <= one_pass) || N * K < 1 << 20 ||
      rows_are_ragged(K, scale_block) || N >= 1 << 30 || K >= kPanelMaxDepth) {
    return plan;
  }
  plan.groups = M <= kStreamTokens ? 1 : 2;
  divide_into_panels(plan, N, sms);
  if (plan.groups == 1) {
    constexpr int kTiles = 2;  // all that it has, and all at once
    if (N < kTiles * kStreamRows || N > int64_t{kTiles} * kStreamRows * sms) return {};
    plan.tiles = kTiles;
    plan.panels = static_cast<int>(ceil_div(N, int64_t{kTiles} * kStreamRows));
  }
  return plan;
}

// Panels of a ragged weight lie in shared memory whole (ragged_kernel.cuh), behind barriers and a
// step of x of each warp. With 12 warps a lane has 168 registers, which it needs.
constexpr int kRaggedPanelWarps = 12;
constexpr int kRaggedPanelX = 128;  // where x begins

// With 16 bytes for each tile of codes and of scales, and what the last row's last step reads
// behind them.
constexpr int64_t ragged_panel_bytes(int tiles, int groups, int warps, int64_t K, int scale_block) {
  const int64_t x = int64_t{warps} * groups * 8 * kStreamDepth * 2;
  const int64_t tile = kStreamRows * (K / 2 + ceil_div(K, int64_t{scale_block})) + 32;
  return std::max<int64_t>(kRaggedPanelX + x + tiles * tile + kStreamDepth / 2, kMoreThanHalfAnSm);
}

// All panels at once, of two or three tiles, and as many warps as fit that all have as many steps
// as another: K is often a little more than 16 steps, 9.3 us at M = 8, 5003 x 4112, with 9 warps,
// and 9.8 with 12. Up to eight rows of x are for the stream kernel where half of the SMs would have
// no panel, or warps more than two steps: 8.2 and 9.9 us at M = 1, 2000 x 8208.
inline PanelPlan plan_ragged_panel(int64_t M, int64_t N, int64_t K, int scale_block,
                                   int64_t max_shared_bytes, int sms) {
  constexpr int kLeastWarps = 8;
  const int64_t tiles = std::max<int64_t>(2, ceil_div(N, int64_t{kStreamRows} * sms));
  if (M > kPanelTokens || N * K < 1 << 20 || K % kRaggedDepth != 0 || K >= kPanelMaxDepth ||
      !rows_are_ragged(K, scale_block) || tiles > 3 || N < tiles * kStreamRows) {
    return {};
  }
  PanelPlan plan;
  plan.tiles = static_cast<int>(tiles);
  plan.groups = M <= kStreamTokens ? 1 : 2;
  plan.panels = static_cast<int>(ceil_div(N, tiles * kStreamRows));
  const int64_t steps = ceil_div(K, int64_t{kStreamDepth});
  for (int64_t rounds = ceil_div(steps, int64_t{kRaggedPanelWarps});; ++rounds) {
    plan.warps = static_cast<int>(ceil_div(steps, rounds));
    if (plan.groups == 1 && (rounds > 2 || plan.panels <= sms / 2)) return {};
    if (ragged_panel_bytes(plan.tiles, plan.groups, plan.warps, K, scale_block) <=
        max_shared_bytes) {
      return plan;
    }
    if (plan.warps <= kLeastWarps) return {};
  }
}

}  // namespace my_ops
