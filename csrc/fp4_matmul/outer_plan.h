// How the outer kernel divides a product: a pure function of the shape and the device, so that a
// shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

constexpr int kOuterCols = 128;  // of the factor's dense dimension, a block's: 64 bytes of codes
constexpr int kOuterDepth = 32;  // rows of the factor, a step of a warp
constexpr int kOuterMaxTokens = 64;

struct OuterPlan {
  int tokens = 0;  // rows of x in a block: 8, 16 or 32; 0: the kernel is not for this product
  int splits = 1;  // blocks of a cluster, each with a part of K
};

// For out [M, N] and K, the factor's rows. Below 2^20 elements of the factor a launch takes longer
// than the product.
inline OuterPlan plan_outer(int64_t M, int64_t N, int64_t K, int sms) {
  OuterPlan plan;
  constexpr int64_t kLimit = int64_t{1} << 30;
  if (M > kOuterMaxTokens || N * K < 1 << 20 || N % kOuterCols != 0 || K % 8 != 0 || N >= kLimit ||
      K >= kLimit) {
    return plan;
  }
  plan.tokens = M <= 8 ? 8 : (M <= 16 ? 16 : 32);
  const int64_t tiles = N / kOuterCols * ceil_div(M, int64_t{plan.tokens});
  double best = 0;
  for (const int splits : {1, 2, 3}) {  // of clusters of four 30 fit, which leaves SMs idle
    // What a block takes besides its rows is as long as 500 of them.
    const double time = static_cast<double>(ceil_div(tiles, int64_t{sms / splits})) *
                        (500 + static_cast<double>(K) / splits);
    if (splits == 1 || time < best) {
      best = time;
      plan.splits = splits;
    }
  }
  return plan;
}

}  // namespace my_ops
