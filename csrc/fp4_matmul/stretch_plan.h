// How the stretch kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "fp4_matmul/panel_plan.h"

namespace my_ops {

constexpr int kStretchTileRows = 8;  // of the weight, a tile
// 16 warps have room for four steps of 16 rows of x in registers each.
constexpr int kStretchWarps = 16, kStretchSteps = 4, kStretchStep = 64;
constexpr int kStretchPart = kStretchSteps * kStretchStep;  // of K, a warp's
constexpr int kStretchSlots = 12;
// Copies are quick where source and target begin at the same place within a line of memory: M = 16,
// 5003 x 4112 took 10.2 us when this kernel was new, and 14.2 where each began at any multiple of
// 16 bytes.
constexpr int kStretchLine = 128;
constexpr int kStretchHead = 2 * kStretchLine;  // of shared memory: barriers
static_assert(kStretchHead >= 16 * (kStretchSlots + 1));
// What the warps' equal parts of K leave is done by one or another of them, one step at a time: up
// to as many steps as this.
constexpr int kStretchMostRest = 16;

struct StretchPlan {
  int blocks = 0;  // 0: the kernel is not for this product
  int groups = 1;  // of eight rows of x
  int warps = 0;   // of a block
  int tiles = 0;   // of all blocks
  int slots = 0;   // for tiles of a block
  // Shared memory holds barriers, x, slots, and sums of the warps or these in x's place. A slot
  // holds codes, behind them scales.
  int slots_at = 0;
  int slot_codes = 0, slot_bytes = 0;
  bool sums_take_x = false;
  int sums = 0;  // of a warp, bytes
  int bytes = 0;
};

// With room for `bytes` from anywhere in a line on.
constexpr int stretch_lines(int bytes) {
  return ceil_div(bytes + kStretchLine - 1, kStretchLine) * kStretchLine;
}

// Only where it is quicker than the kernels that take the same products. Microseconds, here |
// there. 5003 rows of the weight, by panels: K = 1552 M = 16 6.6 | 6.0, M = 8 6.1 | 4.8; K = 2064
// M = 16 6.2 | 7.3, M = 8 5.8 | 6.2. K = 4112, by streams: 11008 rows M = 4 15.3 | 16.5, M = 8 15.4
// | 19.8; 20000 rows M = 4 26.4 | 25.5, M = 8 25.5 | 30.5. 6300 rows fill panels of three tiles:
// M = 5 9.6 | 9.3, M = 8 9.7 | 9.8.
inline bool stretches_are_quicker(int64_t M, int64_t K, int most_tiles) {
  if (M <= kStreamColumns || K < 2048 || (M <= 5 && K < 4096)) return false;
  const bool fill_panels = most_tiles == 6;
  return M >= kStreamTokens || (most_tiles <= 12 && !(M <= 6 && fill_panels));
}

inline StretchPlan plan_stretch(int64_t M, int64_t N, int64_t K, int scale_block,
                                int64_t max_shared_bytes, int sms) {
  constexpr int kMostTiles = 64;  // of a block
  if (M > kPanelTokens || N < kStreamRows || N * K < 1 << 20 || K % kRaggedDepth != 0 ||
      !rows_are_ragged(K, scale_block) || N > int64_t{sms} * kMostTiles * kStretchTileRows ||
      K > kStretchWarps * kStretchPart + kStretchMostRest * kStretchStep) {
    return {};
  }
  StretchPlan plan;
  plan.groups = M <= kStreamTokens ? 1 : 2;
  const int depth = static_cast<int>(K);
  plan.warps = std::min(kStretchWarps, depth / kStretchPart);
  plan.tiles = static_cast<int>(ceil_div(N, int64_t{kStretchTileRows}));
  plan.blocks = std::min(plan.tiles, sms);
  const int most = ceil_div(plan.tiles, plan.blocks);
  if (!stretches_are_quicker(M, K, most)) return {};
  plan.slots_at = kStretchHead + stretch_lines(static_cast<int>(M) * depth * 2);
  // Lanes read up to seven bytes behind a row of scales.
  plan.slot_codes = stretch_lines(kStretchTileRows * depth / 2);
  plan.slot_bytes =
      plan.slot_codes + stretch_lines(kStretchTileRows * ceil_div(depth, scale_block) + 8);
  plan.sums = most * kStretchTileRows * plan.groups * 8 * 4;
  const auto fit = [&](int sums) {
    const int64_t slots = (max_shared_bytes - plan.slots_at - sums) / plan.slot_bytes;
    return static_cast<int>(std::min<int64_t>(slots, std::min(most, kStretchSlots)));
  };
  int sums = plan.warps * plan.sums;
  // Each row of x, of nine at least, has room for two warps.
  if (fit(sums) < most && plan.groups == 2 && plan.sums <= plan.warps * kStretchPart) {
    plan.sums_take_x = true;
    sums = 0;
  }
  plan.slots = fit(sums);
  if (plan.slots < std::min(most, 2)) return {};
  plan.bytes = std::max(plan.slots_at + plan.slots * plan.slot_bytes + sums, kMoreThanHalfAnSm);
  return plan;
}

}  // namespace my_ops
