// Which tile the wide kernel uses for a product: a pure function of the shape and the number of
// SMs, so that a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

struct WidePlan {
  int tokens = 0;  // rows of x in a tile: 128 or 256; 0: the kernel is not for this product
  int row_tiles = 0, token_tiles = 0;
  int clusters = 0;
};

// For out [M, N], in clusters of two blocks, each with 128 of N. Below 2^20 elements of the factor
// a launch takes longer than the product.
inline WidePlan plan_wide(int64_t M, int64_t N, int64_t K, int sms) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  WidePlan plan;
  if (N * K < 1 << 20 || N >= kLimit || M >= kLimit || K >= kLimit) return plan;
  const int64_t clusters = sms / 2, row_tiles = ceil_div(N, int64_t{256});
  int64_t best = 0;
  for (const int tokens : {256, 128}) {
    const int64_t token_tiles = ceil_div(M, int64_t{tokens}), tiles = row_tiles * token_tiles;
    if (tiles >= kLimit) return {};
    const int64_t time = ceil_div(tiles, clusters) * (tokens + 16);  // measured
    if (plan.tokens == 0 || time < best) {
      best = time;
      plan = {tokens, static_cast<int>(row_tiles), static_cast<int>(token_tiles),
              static_cast<int>(std::min(tiles, clusters))};
    }
  }
  return plan;
}

}  // namespace my_ops
