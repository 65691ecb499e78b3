// Whether a product goes to the tensor cores, with which tile, and how K is cut: a pure function of
// the shape and the number of SMs, so that a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

// A cluster's tile, and the TFLOP/s of narrow products that all clusters together reach with it.
struct WgmmaShape {
  int rows, cols, depth;  // depth: what K is padded to, and what slices are a multiple of
  double rate;
};

struct WgmmaPlan {
  int shape;  // index, or -1: the CUDA cores are faster
  int row_tiles, col_tiles;
  int whole_tiles;  // each by one cluster
  int cut_tiles;    // each in `slices` slices of K
  int slices;
  double microseconds;  // of all launches
};

// Estimated microseconds of a piece of work of one cluster: its products, filling the stages,
// storing the tile.
inline double wgmma_microseconds(const WgmmaShape& shape, int clusters, int products,
                                 double depth) {
  constexpr double kStart = 5;
  return 2e-6 * shape.rows * shape.cols * depth * products * clusters / shape.rate + kStart;
}

// Estimated microseconds of writing and adding slices: one more launch, and their way through L2.
inline double wgmma_sum_microseconds(const WgmmaShape& shape, int cut_tiles, int slices) {
  constexpr double kLaunch = 4, kBytesPerMicrosecond = 2.5e6;
  return kLaunch + 8.0 * shape.rows * shape.cols * cut_tiles * slices / kBytesPerMicrosecond;
}

// Estimated microseconds of the split passes: 4 bytes of each element read, plane_bytes written.
inline double split_microseconds(double elements, int plane_bytes) {
  constexpr double kLaunches = 10, kBytesPerMicrosecond = 3.6e6;
  return kLaunches + elements * (4 + plane_bytes) / kBytesPerMicrosecond;
}

// Estimated microseconds of the product on the CUDA cores.
inline double ieee_microseconds(double M, double N, double K, int sms) {
  constexpr double kLaunch = 8, kFlopsPerMicrosecond = 46e6, kBytesPerMicrosecond = 3.5e6;
  // Tiles of 64 x 64, cut along K into slices of 128.
  const double busy = std::min(1.0, M * N / 4096 * std::max(1.0, K / 128) / sms);
  return kLaunch + std::max(2 * M * N * K / (kFlopsPerMicrosecond * busy),
                            4 * (M * K + K * N + M * N) / kBytesPerMicrosecond);
}

// The fastest by estimate. Full waves of clusters take whole tiles; what is left for a last wave is
// cut along K where that is worth the sum.
template <int kCount>
WgmmaPlan plan_wgmma(const WgmmaShape (&shapes)[kCount], int products, int plane_bytes, int64_t M,
                     int64_t N, int64_t K, int clusters, int sms) {
  constexpr int64_t kMinDepth = 256, kMaxTiles = int64_t{1} << 30;
  const double m = static_cast<double>(M), n = static_cast<double>(N), k = static_cast<double>(K);
  const double split = split_microseconds((m + n) * k, plane_bytes);
  WgmmaPlan best{-1, 0, 0, 0, 0, 1, ieee_microseconds(m, n, k, sms)};
  for (int index = 0; index < kCount; ++index) {
    const WgmmaShape& shape = shapes[index];
    const int64_t row_tiles = ceil_div(M, shape.rows), col_tiles = ceil_div(N, shape.cols);
    if (row_tiles > kMaxTiles / col_tiles) continue;
    const int tiles = static_cast<int>(row_tiles * col_tiles);
    const int rest = tiles % clusters;
    const auto depth = static_cast<double>(ceil_div(K, shape.depth) * shape.depth);
    const double whole =
        split + wgmma_microseconds(shape, clusters, products, depth) * (tiles / clusters);
    for (int slices = 1; slices <= clusters && rest > 0; ++slices) {
      if (slices > 1 && K / slices < kMinDepth) break;
      double time = whole + wgmma_microseconds(shape, clusters, products, depth / slices) *
                                ceil_div(rest * slices, clusters);
      if (slices > 1) time += wgmma_sum_microseconds(shape, rest, slices);
      if (time < best.microseconds) {
        const int cut = slices > 1 ? rest : 0;
        best = {index,
                static_cast<int>(row_tiles),
                static_cast<int>(col_tiles),
                tiles - cut,
                cut,
                slices,
                time};
      }
    }
    if (rest == 0 && whole < best.microseconds) {
      best = {index, static_cast<int>(row_tiles), static_cast<int>(col_tiles), tiles, 0, 1, whole};
    }
  }
  return best;
}

}  // namespace my_ops
