// Which tile the fused kernel uses for a product: a pure function of the shape and the number of
// SMs, so that a shape always gives the same bits. Needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "fp4_matmul/ragged_rows.h"

namespace my_ops {

struct FusedPlan {
  int tokens = 0;  // rows of x in a tile: 16 to 256; 0: the kernel is not for this product
  // Blocks of a cluster: each with a part of K, or each with rows of the weight of its own and a
  // share of the copies of x, for both.
  int splits = 1, sharers = 1;
  int parts = 1;  // clusters of a tile, each with a part of K (fused_mail.cuh)
  int blocks = 0;
  int tail = 0;  // the first tile that is halved along K (FusedWorks); the number of tiles: none is
  bool takes_map = false;
  bool later_tiles = false;  // a block has more than one tile, one after the other
  bool takes_boxes = false;  // of the weight, set where its maps are made (fused_takes_boxes)
};

constexpr int kFusedRows = 128;                         // of the weight, in every tile
constexpr int kFusedDepth = 256;                        // of K, in a step
constexpr int kRaggedCodePitch = kFusedDepth / 2 + 16;  // what a step copies of a ragged row
constexpr int kBoxScales = 16;                          // bytes of a row in a box of scales
constexpr int kFusedSplits = 3;  // of K, at most: between the blocks of a cluster
constexpr int kFusedParts = 3;   // of K, at most: between clusters

// How many groups of two warpgroups share the steps of a tile. Two hide more; from 64 rows of x on
// one with more registers is faster, and from 128 on there is no room for two.
constexpr int fused_depth_groups(int tokens) { return tokens <= 32 ? 2 : 1; }

// How x comes to a tile. By the copy engine, in its own order, to tiles of 192 and more: decoding
// in that order takes 1.4 times the instructions, for which smaller ones have no time (30.8 us at
// 128 rows instead of 29.9). Else as an image in the order of decoded codes (x_image.cuh).
constexpr bool fused_takes_map(int tokens, bool ragged) { return tokens >= 192 && !ragged; }

// Three where there are products of that many rows of x on few rows of a weight: 24.1 us at 64
// rows, 4096 x 14336, with two 31.9.
constexpr int fused_most_splits(int tokens) {
  return tokens >= 32 && tokens <= 128 ? kFusedSplits : 2;
}

// Whether a product lets the next one's image start while it ends (consume). Where tiles are small:
// with a ragged weight 15.9 us instead of 16.2 at 64 rows of x, 5003 x 4112 with two splits, 31.4
// instead of 32.1 with 256 in tiles of 128; 45.0 instead of 44.5 with 512 in tiles of 192.
constexpr bool fused_ends_early(int tokens, bool ragged) { return !ragged || tokens <= 128; }

// How many clusters run at once. Of those of three an H200 has room for 39, which leaves 15 of its
// SMs idle, of those of four for 30.
constexpr int fused_clusters(int blocks, int sms) {
  return blocks < 3 ? sms / blocks : sms * 3 / 10;
}

// Larger ones do not fit often enough, so K is also spread over clusters of one or two blocks: 4096
// x 14336 with 64 rows of x by 128 blocks takes 19.9 us, by 96 in clusters of three 23.9. Two of
// one block are no faster than a cluster of two.
constexpr bool fused_has_parts(int tokens, int splits, int parts) {
  if (parts == 1) return true;
  return (tokens == 64 || tokens == 128) && (splits == 2 || (splits == 1 && parts == 3));
}

// What products on an H200 take: a start and an end, and so much for every step. Microseconds,
// before warps left the weight to boxes (fused_takes_boxes), at 8192 x 8192: 17.2 with 32 rows of
// x, 21.0 (64), 28.0 (128), 38.9 (192), 47.7 (256); at 4096 x 4096 9.4 (32, three splits), 10.8
// (64, three splits), 12.8 (128, two tiles of 64). With a ragged weight tiles of 256 rows of x
// take 34.4 (5003 x 4112, two splits), 53.9 (8200 x 8208, two splits) and 57.0 (5003 x 4112), of
// 192 26.7 (two splits) and 43.3, of 128 31.4, of 64 24.8.
constexpr double fused_fixed_microseconds(int tokens, bool ragged) {
  if (ragged && tokens >= 192) return tokens == 192 ? 7 : 9.5;
  return tokens == 16 ? 4.2 : tokens <= 64 ? 4.6 : tokens == 128 ? 5.2 : 3.7;
}

constexpr double fused_step_microseconds(int tokens, bool ragged) {
  const double step = tokens == 16    ? 0.80
                      : tokens == 32  ? 0.83
                      : tokens == 64  ? 1.03
                      : tokens == 128 ? 1.42
                      : tokens == 192 ? 2.15
                                      : 2.7;
  return ragged && tokens <= 128 ? 1.1 * step : step;
}

// What an exchange between clusters takes, and how much longer steps do, as nearly all SMs run.
// From so many steps of a block on.
constexpr double kFusedMailMicroseconds = 1.2, kFusedMailStep = 1.05;
constexpr int kFusedMailSteps = 4;

// Below 2^20 elements of the weight a launch takes longer than the product. A tile's offsets in the
// weight have 32 bits, a grid 2^16 - 1 blocks along K (x_image.cuh).
inline FusedPlan plan_fused(int64_t M, int64_t N, int64_t K, bool ragged, int sms) {
  FusedPlan plan;
  const int64_t steps = ceil_div(K, int64_t{kFusedDepth});
  if (N < 16 || N * K < 1 << 20 || K % kRaggedDepth != 0 || N >= 1 << 30 || K >= 1 << 27) {
    return plan;
  }
  double best = 0;
  const int64_t row_tiles = ceil_div(N, int64_t{kFusedRows});
  const auto consider = [&](int tokens, int splits, int parts) {
    const bool takes_map = fused_takes_map(tokens, ragged);
    const int sharers = splits == 1 && takes_map && row_tiles > 1 && sms > 1 ? 2 : 1;
    const int64_t token_tiles = ceil_div(M, int64_t{tokens});
    const int64_t tiles = ceil_div(row_tiles, int64_t{sharers}) * token_tiles;
    const int64_t clusters = fused_clusters(splits * sharers, sms) / parts;
    if (tiles > 1 << 29 || (splits * parts > 1 && (tiles > clusters || steps < 8))) return;
    if (parts > 1 && steps < kFusedMailSteps * splits * parts) return;
    // What is left for a last round may be halved (FusedWorks), but only of all rows of x alike,
    // so that equal rows have equal results: where there is one band of tiles, of at most eight
    // token tiles (tile_position.cuh), and whole columns of it.
    const int64_t rest = ceil_div(tiles % clusters, token_tiles) * token_tiles;
    const bool halved = sharers > 1 && tiles > clusters && rest > 0 && 2 * rest <= clusters &&
                        token_tiles <= 8 && steps >= 8;
    const double rounds = static_cast<double>(ceil_div(tiles, clusters)) - (halved ? 0.5 : 0);
    // The figures of tiles whose x is an image are from one round, or few rows of x.
    if (!takes_map && !ragged && M > 512 && rounds > 1) return;
    const double step = fused_step_microseconds(tokens, ragged) * (parts > 1 ? kFusedMailStep : 1);
    const double us = fused_fixed_microseconds(tokens, ragged) +
                      (parts > 1 ? kFusedMailMicroseconds : 0) +
                      rounds * step * static_cast<double>(ceil_div(steps, int64_t{splits} * parts));
    if (plan.tokens > 0 && us >= best) return;
    best = us;
    const int blocks = static_cast<int>(std::min(tiles, clusters)) * splits * sharers * parts;
    const int tail = static_cast<int>(halved ? tiles - rest : tiles);
    plan = {tokens, splits, sharers, parts, blocks, tail, takes_map, tiles > clusters};
  };
  for (const int tokens : {16, 32, 64, 128, 192, 256}) {
    for (int splits = 1; splits <= fused_most_splits(tokens); ++splits) {
      for (int parts = 1; parts <= kFusedParts; ++parts) {
        if (fused_has_parts(tokens, splits, parts)) consider(tokens, splits, parts);
      }
    }
  }
  return plan;
}

// Whether the copy engine can bring the weight in boxes (fused_boxes.cuh), and faster than warps
// do. Parts of K, with their few steps, take longer: 10.4 us instead of 9.8 at 64 rows of x, 4096 x
// 4096.
constexpr bool fused_takes_boxes(const FusedPlan& plan, int64_t N, int64_t K, int scale_block) {
  // Warps bring the first step of each depth group.
  const int64_t first_steps = int64_t{plan.splits} * fused_depth_groups(plan.tokens);
  return plan.tokens >= 32 && plan.tokens <= 128 && plan.parts == 1 &&
         K >= first_steps * kFusedDepth && K % (int64_t{kBoxScales} * scale_block) == 0 &&
         N % 16 == 0;
}

}  // namespace my_ops
