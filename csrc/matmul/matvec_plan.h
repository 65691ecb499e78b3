// How matvec cuts its work into blocks: a pure function of the shape and the number of SMs, so that
// a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

// Rows that one pass over the matrix serves.
constexpr int kMatvecRows = 4;
// Slices of K that the blocks of one cluster add: what every GPU with clusters can launch.
constexpr int kMatvecCluster = 8;

struct MatvecPlan {
  int64_t groups;  // of columns
  int64_t depth;   // of K for each block
  int64_t slices;  // of K
};

// Every block takes a group of columns. Where those are fewer than the `blocks` that keep all SMs
// busy, it takes a slice of K, in multiples of `unit`. A few more slices than a cluster adds become
// as many as it does: others have to meet in memory.
inline MatvecPlan plan_matvec(int64_t cols, int64_t group_cols, int64_t K, int64_t unit,
                              int64_t blocks) {
  const int64_t groups = ceil_div(cols, group_cols);
  int64_t slices = std::max<int64_t>(1, blocks / groups);
  if (slices <= 2 * kMatvecCluster) slices = std::min<int64_t>(slices, kMatvecCluster);
  const int64_t depth = ceil_div(ceil_div(K, slices), unit) * unit;
  return {groups, depth, ceil_div(K, depth)};
}

}  // namespace my_ops
