// Whether a product in TF32 reads its operands as they lie in memory, with which tile, and how K is
// cut: a pure function of the shape and the number of SMs. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "common/ceil_div.h"

namespace my_ops {

struct Tf32Plan {
  int shape;  // index, or -1: not at all
  int slices;
  double microseconds;
};

// A tile, how many slices of its K there may be, and the microseconds of a stage (32 of K) when
// most SMs have a block, measured on an H200: bound by what shared memory brings to the tensor
// cores. Slices of larger tiles were never the fastest.
struct Tf32Shape {
  int rows, cols, max_slices;
  double stage;
};
constexpr Tf32Shape kTf32Shapes[] = {
    {64, 128, 3, 0.27}, {128, 128, 1, 0.38}, {128, 192, 1, 0.52}, {128, 256, 1, 0.70}};

// The fastest by estimate. The same for both orders of M and N: which operand gives the rows of the
// tiles depends on how they lie in memory, and K must be cut alike for that to change no bits.
inline Tf32Plan plan_tf32(int64_t M, int64_t N, int64_t K, int sms) {
  // Copies start at multiples of 16 bytes, whichever way an operand lies. Small products stay
  // "ieee": they take less than 20 us, and are exact there.
  constexpr int64_t kAlignment = 4, kMaxSize = int64_t{1} << 30;
  constexpr double kSmall = 512.0 * 512 * 512;
  // One accumulator for a slice: it drifts by 2^-29 of a sum of equal signs for each 1 of K.
  constexpr int64_t kMaxDepth = 8192;
  constexpr double kStart = 4.5, kSum = 2.5;  // of all blocks, of slices
  constexpr double kEvenlyFilled = 0.85;
  const int64_t rows = std::max(M, N), cols = std::min(M, N);
  Tf32Plan best{-1, 1, 0};
  if ((M | N | K) % kAlignment != 0 || rows > kMaxSize || K > kMaxSize) return best;
  if (cols < 128 || static_cast<double>(rows * cols) * static_cast<double>(K) <= kSmall)
    return best;
  for (int index = 0; index < static_cast<int>(std::size(kTf32Shapes)); ++index) {
    const Tf32Shape& shape = kTf32Shapes[index];
    const int64_t tiles = ceil_div(rows, shape.rows) * ceil_div(cols, shape.cols);
    for (int slices = 1; slices <= shape.max_slices; ++slices) {
      // The blocks of clusters run at once or not at all; GPCs differ in their number of SMs, which
      // leaves some of them idle.
      const double places = slices <= 2 ? sms : kEvenlyFilled * sms;
      if (slices > 1 && static_cast<double>(tiles * slices) > places) continue;
      if (K > kMaxDepth * slices) continue;
      const double stages = static_cast<double>(ceil_div(K, 64 * slices) * 2);
      const double waves = static_cast<double>(ceil_div(tiles * slices, sms));
      const double time = kStart + waves * stages * shape.stage + (slices > 1 ? kSum : 0);
      if (best.shape < 0 || time < best.microseconds) best = {index, slices, time};
    }
  }
  return best;
}

}  // namespace my_ops
