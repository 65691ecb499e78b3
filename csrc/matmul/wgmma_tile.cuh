// The tiles of the tensor-core kernel, the work they are cut into, and the arguments. Device only,
// needs no torch.
#pragma once

#include <cstdint>

#include "common/tile_position.cuh"
#include "matmul/wgmma_planes.cuh"

namespace my_ops {
namespace tensor_core {

using sm90::Element;

// A cluster of kCluster blocks owns kCluster * kRows rows and kCols columns of C. kProducts says
// how many products of planes make one product of matrices: 1 (one plane), 3 (two) or 6 (three).
// kPromote: after how many stages the accumulator is added to a second one in float32 registers;
// 0 for never.
template <Element kElement_, int kProducts_, int kCols_, int kRowBytes_, int kStages_,
          int kCluster_, int kPromote_>
struct Tile {
  static constexpr Element kElement = kElement_;
  static constexpr int kProducts = kProducts_, kStages = kStages_, kCluster = kCluster_;
  static constexpr int kPromote = kPromote_;
  static constexpr int kPlanes = kProducts == 6 ? 3 : kProducts == 3 ? 2 : 1;
  using Layout = PlaneLayout<kRowBytes_, kPlanes>;
  static constexpr int kConsumers = 2;  // warpgroups, each with 64 rows
  static constexpr int kRows = kConsumers * kGroupRows, kCols = kCols_;
  static constexpr int kDepth = kRowBytes_ / sm90::kElementBytes<kElement>;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kUnit = kPromote > 0 ? kPromote : 1;
  // One stage: the planes of A's tile, then those of B's.
  static constexpr int kPlaneBytesA = kRows * kRowBytes_, kPlaneBytesB = kCols * kRowBytes_;
  static constexpr int kOffsetB = kPlanes * kPlaneBytesA;
  static constexpr int kStageBytes = kOffsetB + kPlanes * kPlaneBytesB;
  // Behind the stages: what to multiply each row's and column's partial sums with.
  static constexpr bool kScaled = kElement == Element::fp16 && kPromote > 0;
  static constexpr int kScaleBytes = kScaled ? (kRows + kCols) * 4 : 0;
  static constexpr int kSharedBytes = kStages * (kStageBytes + kScaleBytes) + 2 * kStages * 8;
  static constexpr int kAccumulators = kCols / 2;  // of a thread
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");
  static_assert(kProducts == 1 || kProducts == 3 || kProducts == 6, "known products");
};

// The planes that product number `product` multiplies. The smallest products come first, so that
// the fewest additions happen to a large accumulator.
template <int kProducts>
__device__ constexpr int plane_of_a(int product) {
  constexpr int kSix[] = {0, 1, 2, 0, 1, 0}, kThree[] = {0, 1, 0};
  return kProducts == 6 ? kSix[product] : kProducts == 3 ? kThree[product] : 0;
}

template <int kProducts>
__device__ constexpr int plane_of_b(int product) {
  constexpr int kSix[] = {2, 1, 0, 1, 0, 0}, kThree[] = {1, 0, 0};
  return kProducts == 6 ? kSix[product] : kProducts == 3 ? kThree[product] : 0;
}

// C [M, N] = A [M, K] B [K, N], with B's planes made of B^T. Cluster tiles are numbered by
// tile_position; the first whole_tiles are computed by one cluster each, the other cut_tiles in
// `slices` slices of K that go to `partial`.
template <class Output>
struct Product {
  const char* A;  // planes
  const char* B;
  const float* unscale_a;  // of kScaled tiles: [groups, k_tiles / kPromote, kGroupRows]
  const float* unscale_b;
  int groups_a, groups_b, k_tiles;
  int row_tiles, col_tiles;
  int whole_tiles, cut_tiles, slices;
  float* partial;    // [slices, cut_tiles, kCluster, kAccumulators / 4, threads, 4]
  const int* unfit;  // nothing is computed unless (*unfit != 0) == if_unfit; null: always
  bool if_unfit;
  Output output;
};

template <class Product>
__device__ __forceinline__ bool is_due(const Product& product) {
  return product.unfit == nullptr || (*product.unfit != 0) == product.if_unfit;
}

// What a cluster works at: a tile and a range of its K tiles.
struct Work {
  int tile, first_k, k_tiles, cut, slice;  // cut: the number of the cut tile, or -1
};

template <class Product>
__device__ __forceinline__ int work_count(const Product& product) {
  return product.whole_tiles + product.cut_tiles * product.slices;
}

// kUnit: what the K tiles of a slice are a multiple of.
template <int kUnit, class Product>
__device__ __forceinline__ Work work_of_index(const Product& product, int index) {
  const int cut_index = index - product.whole_tiles;
  if (cut_index < 0) return {index, 0, product.k_tiles, -1, 0};
  const int cut = cut_index % product.cut_tiles, slice = cut_index / product.cut_tiles;
  const int64_t units = product.k_tiles / kUnit;
  const int first = static_cast<int>(units * slice / product.slices) * kUnit;
  const int end = static_cast<int>(units * (slice + 1) / product.slices) * kUnit;
  return {product.whole_tiles + cut, first, end - first, cut, slice};
}

}  // namespace tensor_core
}  // namespace my_ops
