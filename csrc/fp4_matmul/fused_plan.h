// Which tile the fused kernel uses for a product: a pure function of the shape and the number of
// SMs, so that a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

struct FusedPlan {
  int tokens = 0;  // rows of x in a tile: 32 to 256; 0: the kernel is not for this product
  int splits = 1;  // blocks of a cluster, each with a part of K
  int blocks = 0;
};

constexpr int kFusedRows = 128;  // of the weight, in every tile

// Below 2^20 elements of the weight a launch takes longer than the product. K is a multiple of what
// keeps rows of scales at multiples of 4 bytes.
inline FusedPlan plan_fused(int64_t M, int64_t N, int64_t K, int scale_block, int sms) {
  FusedPlan plan;
  const int64_t steps = ceil_div(K, int64_t{128});
  if (N * K < 1 << 20 || K % (4 * scale_block) != 0 || N >= 1 << 30 || K >= 1 << 30) {
    return plan;
  }
  double best = 0;
  for (const int tokens : {32, 64, 128, 256}) {
    // Of a step, measured on an H200 at 8192 x 8192. Decoding takes most of it below 128 rows of x.
    const double us_of_step =
        tokens == 32 ? 0.75 : (tokens == 64 ? 0.87 : (tokens == 128 ? 1.05 : 1.35));
    const int64_t tiles = ceil_div(N, int64_t{kFusedRows}) * ceil_div(M, int64_t{tokens});
    if (tiles > 1 << 30) return {};
    // Blocks of a cluster of two; four would leave SMs idle, of which 30 clusters fit.
    for (const int splits : {1, 2}) {
      if (splits > 1 && (tiles * splits > sms || steps < 16)) continue;
      const double us = static_cast<double>(ceil_div(tiles, int64_t{sms / splits})) * us_of_step *
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
