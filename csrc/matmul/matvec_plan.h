// How matvec cuts its work into blocks: a pure function of the shape and the number of SMs, so that
// a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

// Rows that one pass over the matrix serves. Skipping the idle ones gained at most 3 %: loading the
// matrix decides.
constexpr int kMatvecRows = 4;
// Of K for one block: its part of x fits 32 KB of shared memory in float64.
constexpr int kMatvecDepth = 1024;

struct MatvecPlan {
  int64_t groups;  // of columns
  int64_t depth;   // of K for each block
  int64_t slices;  // of K
};

// Eight blocks for each SM keep enough loads in flight (four: 3 to 10 % slower), unless their share
// of K gets too small: every slice costs a trip of its sums through memory.
inline MatvecPlan plan_matvec(int64_t cols, int64_t group_cols, int64_t K, bool along_k, int sms) {
  constexpr int64_t kBlocksPerSM = 8;
  const int64_t unit = along_k ? 256 : 128;  // multiples of what its loops take at once
  const int64_t groups = ceil_div(cols, group_cols);
  const int64_t slices = std::max<int64_t>(1, kBlocksPerSM * sms / groups);
  const int64_t depth = std::min<int64_t>(kMatvecDepth, ceil_div(ceil_div(K, slices), unit) * unit);
  return {groups, depth, ceil_div(K, depth)};
}

}  // namespace my_ops
