// Which tile a product takes in float32 (simt_gemm.cuh) or float64 (dmma_gemm.cuh), and how it cuts
// K: a pure function of the shape and the device, so that a shape always gives the same bits. Needs
// no torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

enum class SimtTile { large, small, wide };

// A tile's shape, how many blocks of it an SM holds, which share of the SM's FMA rate one such
// block reaches alone and which that many reach together, and the cycles that a block takes beside
// its FMAs: to fill the stages, to store the tile.
struct SimtTileShape {
  SimtTile tile;
  int rows, cols, blocks_per_sm;
  double rate_alone, rate_full;
  double start_cycles;
};

// Rates measured on an H200, TFLOP/s over the 65 of bare FMAs: in float32 on the CUDA cores, in
// float64 on the tensor cores. A large float32 tile has nothing beside it on its SM that could hide
// its start: 10 us.
//
// wide: for C with few rows (or columns, transposed): bound by reading the other operand.
constexpr SimtTileShape kFloat32Shapes[] = {
    {SimtTile::large, 128, 256, 1, 0.82, 0.82, 20000},
    {SimtTile::small, 64, 64, 4, 0.58, 0.66, 500},
    {SimtTile::wide, 16, 256, 3, 0.40, 0.55, 500},
};
constexpr SimtTileShape kFloat64Shapes[] = {
    {SimtTile::large, 128, 128, 1, 0.90, 0.90, 1500},
    {SimtTile::small, 64, 64, 2, 0.60, 0.80, 750},
    {SimtTile::wide, 16, 128, 3, 0.25, 0.40, 500},
};

// Whether `shape` describes `Tile`.
template <class Tile>
constexpr bool tile_is(const SimtTileShape& shape, SimtTile tile) {
  return shape.tile == tile && shape.rows == Tile::kRows && shape.cols == Tile::kCols &&
         shape.blocks_per_sm == Tile::kBlocksPerSM;
}

struct SimtPlan {
  SimtTile tile;
  bool transposed;      // compute C^T = B^T A^T: a wide tile for a tall C
  int64_t whole_tiles;  // each by one block
  int64_t cut_tiles;    // each by `slices` blocks
  int64_t slices;
  bool clustered;  // the slices of a tile are the blocks of one cluster, which adds them
};

// Estimated cycles of an SM that runs `blocks` blocks of one tile, each over `depth` of K.
inline double simt_cycles(const SimtTileShape& shape, double blocks, double depth) {
  constexpr double kFmaPerCycle = 128;
  const double resident = std::min<double>(blocks, shape.blocks_per_sm);
  const double others = shape.blocks_per_sm > 1 ? (resident - 1) / (shape.blocks_per_sm - 1) : 0;
  const double rate = shape.rate_alone + (shape.rate_full - shape.rate_alone) * others;
  const double fma_cycles = shape.rows * shape.cols * depth / (kFmaPerCycle * rate);
  return blocks * (fma_cycles + shape.start_cycles);
}

// Estimated cycles of a product whose tiles are all cut into slices for the blocks of a cluster;
// negative if these would take more than one wave.
inline double simt_cluster_cycles(const SimtTileShape& shape, int64_t tiles, int64_t slices,
                                  int64_t K, int sms) {
  // GPCs differ in their number of SMs: clusters of more than two leave some idle, and fill others
  // with one block more than their share.
  constexpr double kEvenlyFilled = 0.85;
  constexpr double kSumCycles = 1500;
  constexpr int64_t kStep = 16;  // of K, in a tile's main loop
  const double places = slices == 2 ? sms : kEvenlyFilled * sms;
  const double blocks = std::ceil(static_cast<double>(tiles * slices) / places);
  if (blocks > shape.blocks_per_sm) return -1;
  const auto depth = static_cast<double>(ceil_div(ceil_div(K, kStep), slices) * kStep);
  return simt_cycles(shape, blocks, depth) + kSumCycles;
}

// Estimated cycles of adding up the slices: one more launch, and their way through L2.
inline double simt_sum_cycles(const SimtTileShape& shape, int64_t cut_tiles, int64_t slices) {
  constexpr double kLaunchCycles = 4000, kBytesPerCycle = 2000, kCyclesPerSlice = 30;
  const double bytes = 4.0 * shape.rows * shape.cols * cut_tiles * (slices + 1);
  return kLaunchCycles + bytes / kBytesPerCycle + slices * kCyclesPerSlice;
}

// The fastest by estimate. Full waves of blocks take whole tiles; what is left for a last wave is
// cut along K such that it fills each SM with 1, 2, ... blocks. Few tiles may all be cut for
// clusters of blocks, where the device has `clusters`.
template <int kCount>
SimtPlan plan_simt(const SimtTileShape (&shapes)[kCount], int64_t M, int64_t N, int64_t K, int sms,
                   bool clusters) {
  constexpr int64_t kMinDepth = 128;  // a thinner slice would be all start and end
  constexpr int64_t kMinClusterDepth = 64, kMaxClusterBlocks = 8;
  SimtPlan best{};
  double best_cycles = -1;
  for (const SimtTileShape& shape : shapes) {
    const bool transposed = shape.tile == SimtTile::wide && M > N;
    const int64_t rows = transposed ? N : M, cols = transposed ? M : N;
    const int64_t tiles = ceil_div(rows, shape.rows) * ceil_div(cols, shape.cols);
    const double depth = static_cast<double>(K);
    const double uncut = simt_cycles(shape, static_cast<double>((tiles + sms - 1) / sms), depth);
    if (best_cycles < 0 || uncut < best_cycles) {
      best = {shape.tile, transposed, tiles, 0, 1, false};
      best_cycles = uncut;
    }
    const int64_t slots = int64_t{sms} * shape.blocks_per_sm;
    const int64_t cut = tiles % slots, whole = tiles - cut;
    const double whole_cycles = simt_cycles(shape, static_cast<double>(whole / sms), depth);
    for (int fill = 1; cut > 0 && fill <= std::max(4, 2 * shape.blocks_per_sm); ++fill) {
      const int64_t slices = std::min(fill * sms / cut, K / kMinDepth);
      if (slices < 2) continue;
      const double blocks = static_cast<double>((cut * slices + sms - 1) / sms);
      const double cycles = whole_cycles + simt_cycles(shape, blocks, depth / slices) +
                            simt_sum_cycles(shape, cut, slices);
      if (cycles < best_cycles) {
        best = {shape.tile, transposed, whole, cut, slices, false};
        best_cycles = cycles;
      }
    }
    for (int64_t slices = 2; slices <= kMaxClusterBlocks && K / slices >= kMinClusterDepth;
         ++slices) {
      const double cycles = clusters ? simt_cluster_cycles(shape, tiles, slices, K, sms) : -1;
      if (cycles >= 0 && cycles < best_cycles) {
        best = {shape.tile, transposed, 0, tiles, slices, true};
        best_cycles = cycles;
      }
    }
  }
  return best;
}

}  // namespace my_ops
