// Which tile and how many slices of K the SIMT kernel uses for a product: a pure function of its
// shape and of the number of SMs, so that a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace my_ops {

enum class SimtTile { large, small };

struct SimtPlan {
  SimtTile tile;
  int splits;
};

// What the choice needs to know of a tile: its shape, how many blocks of it an SM holds, and the
// share of the FMA rate that one and that all of them reach.
struct SimtTileShape {
  SimtTile tile;
  int rows, cols, blocks_per_sm;
  double rate_alone, rate_full;
};

constexpr SimtTileShape kSimtTiles[] = {
    {SimtTile::large, 128, 256, 1, 0.78, 0.78},
    {SimtTile::small, 64, 64, 3, 0.56, 0.66},
};

// Estimated cycles of a product under one choice.
inline double simt_cycles(const SimtTileShape& shape, int64_t splits, int64_t M, int64_t N,
                          int64_t K, int sms) {
  constexpr double kFmaPerCycle = 128;    // of one SM
  constexpr double kFixedCycles = 3000;   // filling the pipeline, draining the last tile
  constexpr double kReduceCycles = 4000;  // one more launch
  constexpr double kReduceBytesPerCycle = 2000;
  const double tiles = static_cast<double>((M + shape.rows - 1) / shape.rows) *
                       static_cast<double>((N + shape.cols - 1) / shape.cols);
  const double per_sm = static_cast<double>((static_cast<int64_t>(tiles) * splits + sms - 1) / sms);
  const double resident = std::min<double>(per_sm, shape.blocks_per_sm);
  const double rate = shape.blocks_per_sm == 1
                          ? shape.rate_full
                          : shape.rate_alone + (shape.rate_full - shape.rate_alone) *
                                                   (resident - 1) / (shape.blocks_per_sm - 1);
  const double depth = static_cast<double>(K) / splits;
  double cycles = kFixedCycles + per_sm * shape.rows * shape.cols * depth / (kFmaPerCycle * rate);
  if (splits > 1) {
    const double bytes = 4.0 * static_cast<double>(M) * N * (splits + 1);
    cycles += kReduceCycles + bytes / kReduceBytesPerCycle;
  }
  return cycles;
}

inline SimtPlan plan_simt(int64_t M, int64_t N, int64_t K, int sms) {
  constexpr int64_t kMinDepth = 128;  // below it a slice is all prologue
  constexpr int64_t kMaxSplits = 512;
  SimtPlan best{SimtTile::large, 1};
  double best_cycles = -1;
  for (const SimtTileShape& shape : kSimtTiles) {
    for (int64_t splits = 1; splits <= kMaxSplits; splits *= 2) {
      if (splits > 1 && K / splits < kMinDepth) break;
      const double cycles = simt_cycles(shape, splits, M, N, K, sms);
      if (best_cycles < 0 || cycles < best_cycles) {
        best = {shape.tile, static_cast<int>(splits)};
        best_cycles = cycles;
      }
    }
  }
  return best;
}

}  // namespace my_ops
