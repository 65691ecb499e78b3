// The arguments, tiles and memory of the wide kernel (wide_kernel.cuh). Device only, needs no
// torch.
#pragma once

#include <cuda.h>

#include "common/sm90_wgmma.cuh"
#include "fp4_matmul/box_output.cuh"
#include "fp4_matmul/product_output.cuh"

namespace my_ops {

constexpr int kWideCluster = 2;  // blocks: 3 % faster than one
constexpr int kWideRows = 128;   // of the factor's outer dimension, in a block's tile
constexpr int kWideDepth = 64;   // of K in one stage: 128 bytes

struct WideArguments {
  CUtensorMap factor, x;  // in boxes of 64 columns
  const float* amax;      // null: no global scale
  bool is_nvfp4;
  ProductOutput out;   // [M, N]
  bool boxes;          // out is stored by the copy engine (box_output.cuh)
  const int* misfits;  // not all zero: nothing is computed; null: no such test
  int steps;           // of kWideDepth
  int row_tiles;       // of a cluster, along N
  int token_tiles;     // along M
  bool shares_tail;    // the next kernel may take the SMs that the last round leaves idle
  CUtensorMap y;       // out as it lies in memory
};

// A cluster owns kWideRows of the factor for each block and kCols rows of x, of which each block
// fetches a half for both. kX says how x lies.
template <typename scalar_t_, int kCols_, int kStages_, Major kX_>
struct WideTile {
  using scalar_t = scalar_t_;
  static constexpr int kCols = kCols_, kStages = kStages_;
  static constexpr Major kX = kX_;
  static constexpr auto kElement =
      std::is_same_v<scalar_t, __half> ? sm90::Element::fp16 : sm90::Element::bf16;
  static constexpr int kConsumers = 256;  // two warpgroups of 64 rows
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kAccumulators = kCols / 2;
  // The boxes of x, this block's half of a tile's rows or 64 of them; the factor's are of 64 too.
  static constexpr int kBoxCols = kX == Major::depth ? kCols / kWideCluster : 64;
  static constexpr int kFactorBytes = kWideRows * kWideDepth * 2;
  static constexpr int kXBytes = kCols * kWideDepth * 2;
  static constexpr int kStageBytes = kFactorBytes + kXBytes;
  static constexpr int kStaging = kStages * kStageBytes;  // of results
  static constexpr int kBarriers = kStaging + kConsumers / 128 * kOutputStagingBytes;
  static constexpr int kSharedBytes = kBarriers + 16 * kStages;
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");
};

template <typename Tile>
struct WideRing {
  uint32_t base;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t memory() const { return base + stage * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t full() const { return base + Tile::kBarriers + stage * 8; }
  __device__ __forceinline__ uint32_t empty(int of_stage) const {
    return base + Tile::kBarriers + (Tile::kStages + of_stage) * 8;
  }
  __device__ __forceinline__ int last() const { return (stage ? stage : Tile::kStages) - 1; }
  __device__ __forceinline__ void next() {
    if (++stage == Tile::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace my_ops
