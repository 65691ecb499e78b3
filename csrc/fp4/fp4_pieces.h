// Host: how the CPU kernels of this room go through rows, piece by piece, in parallel.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "fp4/fp4_rows.h"

namespace my_ops {

constexpr int64_t kGrainElements = 32768;  // that are worth a thread: 40 us

// Elements of a row that are quantized or decoded together. The compiler vectorizes loops over
// plain arrays that are too long for it to unroll: 800 M elements/s a core with SSE2, where loops
// over single blocks reach 110.
constexpr int64_t kRun = 512;

// Calls function(row, first k, number of elements) for every piece of a row, in parallel.
template <typename Function>
void for_each_piece(const Fp4Rows& shape, int64_t piece, Function function) {
  const int64_t pieces_per_row = ceil_div(shape.K, piece);
  const int64_t grain = std::max(int64_t{1}, kGrainElements / std::min(piece, shape.K));
  at::parallel_for(0, shape.rows * pieces_per_row, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = p / pieces_per_row, k = p % pieces_per_row * piece;
      function(row, k, std::min(piece, shape.K - k));
    }
  });
}

}  // namespace my_ops
