// How x comes into the stages of the fused kernel: in its own order, in boxes by the copy engine;
// as an image by bulk copies, either of one thread; or from its rows by way of the registers of
// four warps. Device only, sm_90a, needs no torch.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fused_step.cuh"
#include "fp4_matmul/fused_work.cuh"

namespace my_ops {

constexpr int kProducers = 128;

// Blocks that share rows of x (two, hence the mask 3) bring a part of each stage, for all of them.
template <typename Tile>
__device__ __forceinline__ void produce_from_map(const FusedArguments& args, uint32_t base,
                                                 const FusedBarriers<Tile>& barriers,
                                                 const FusedWork& work, StageCursor<Tile>& cursor,
                                                 int rank) {
  if (threadIdx.x != Tile::kConsumers) return;
  const int box_rows = args.sharers > 1 ? Tile::kTokens / 2 : Tile::kTokens;
  const int first = work.shared ? rank * box_rows : 0;  // row of the stage
  const int row = work.token_tile * Tile::kTokens + first;
  for (int k = work.first_step * kFusedDepth; k < work.end_step * kFusedDepth;
       k += Tile::kStageDepth) {
    const uint32_t full = barriers.full + cursor.stage * 8;
    sm90::wait_barrier(barriers.empty + cursor.stage * 8, cursor.parity ^ 1);
    sm90::arrive_expecting(full, Tile::kStageBytes);
#pragma unroll
    for (int b = 0; b < Tile::kStageDepth / 64; ++b) {
      const uint32_t to =
          base + cursor.stage * Tile::kStageBytes + (b * Tile::kTokens + first) * 128;
      if (work.shared) {
        sm90::box_copy_to_ranks(to, args.x_map, row, k + b * 64, full, 3);
        continue;
      }
      for (int r = 0; r < Tile::kTokens; r += box_rows) {
        sm90::box_copy(to + r * 128, args.x_map, row + r, k + b * 64, full);
      }
    }
    cursor.advance(1);
  }
}

template <typename Tile>
__device__ __forceinline__ void produce_from_image(const FusedArguments& args, uint32_t base,
                                                   const FusedBarriers<Tile>& barriers,
                                                   const FusedWork& work,
                                                   StageCursor<Tile>& cursor) {
  if (threadIdx.x != Tile::kConsumers) return;
  constexpr int64_t kStepBytes = Tile::kStageBytes * Tile::kStagesOfStep;
  const uint8_t* source =
      args.image + (int64_t{work.token_tile} * args.steps + work.first_step) * kStepBytes;
  const int stages = work.steps() * Tile::kStagesOfStep;
  for (int i = 0; i < stages; ++i) {
    const int stage = cursor.stage;
    sm90::wait_barrier(barriers.empty + stage * 8, cursor.parity ^ 1);
    sm90::arrive_expecting(barriers.full + stage * 8, Tile::kStageBytes);
    sm90::bulk_copy(base + stage * Tile::kStageBytes, source, Tile::kStageBytes,
                    barriers.full + stage * 8);
    source += Tile::kStageBytes;
    cursor.advance(1);
  }
}

// A producer's share of a stage: of some rows and 128 along K it brings the eight elements of one
// word of codes of each of the four lanes of a quad, so that their transposition (x_image.cuh) is
// no more than a choice of registers.
template <typename Tile>
struct RowsOfStage {
  static constexpr int kItems = Tile::kStageDepth / 128 * Tile::kTokens * 4 / kProducers;
  uint4 quarters[kItems][4];

  __device__ __forceinline__ static int item(int i) {
    return threadIdx.x - Tile::kConsumers + i * kProducers;
  }

  // Rows past M repeat the last one; what comes of them is not stored.
  __device__ __forceinline__ void load(const FusedArguments& args, int64_t first_token, int k0) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int word = item(i) % 4, row = item(i) / 4 % Tile::kTokens;
      const int64_t m = min(first_token + row, args.out.M - 1);
      const int k = k0 + item(i) / (4 * Tile::kTokens) * 128 + word * 8;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const auto* const from = args.x.data + m * args.x.row_stride + k + 32 * t;
        // No __ldg: a load of constant memory might move before the wait for the kernel in front.
        quarters[i][t] = k + 32 * t < args.out.K ? *reinterpret_cast<const uint4*>(from) : uint4{};
      }
    }
  }

  __device__ __forceinline__ void store(uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int word = item(i) % 4, row = item(i) / 4 % Tile::kTokens;
      const uint4 a = pair_order(quarters[i][0]), b = pair_order(quarters[i][1]);
      const uint4 c = pair_order(quarters[i][2]), d = pair_order(quarters[i][3]);
      const uint32_t to =
          stage + (item(i) / (4 * Tile::kTokens) * 2 + word / 2) * Tile::kTokens * 128 + row * 128;
      const uint4 chunks[4] = {
          {a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t at = to + sm90::swizzled_chunk<128>(row % 8, word % 2 * 4 + j) * 16;
        store_shared16(at, chunks[j]);
      }
    }
  }
};

template <typename Tile>
__device__ __forceinline__ void produce_from_rows(const FusedArguments& args, uint32_t base,
                                                  const FusedBarriers<Tile>& barriers,
                                                  const FusedWork& work,
                                                  StageCursor<Tile>& cursor) {
  // Loads run as many stages ahead as 64 registers hold.
  constexpr int kAhead = 4 / RowsOfStage<Tile>::kItems;
  const int64_t first_token = int64_t{work.token_tile} * Tile::kTokens;
  const int first_k = work.first_step * kFusedDepth;
  const int stages = work.steps() * Tile::kStagesOfStep;
  RowsOfStage<Tile> rows[kAhead];
#pragma unroll
  for (int a = 0; a < kAhead; ++a) rows[a].load(args, first_token, first_k + a * Tile::kStageDepth);
#pragma unroll 1
  for (int first = 0; first < stages; first += kAhead) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a < stages) {
        const int stage = cursor.stage;
        sm90::wait_barrier(barriers.empty + stage * 8, cursor.parity ^ 1);
        rows[a].store(base + stage * Tile::kStageBytes);
        sm90::fence_for_copies();
        __syncwarp();
        barriers.announce(stage);
        rows[a].load(args, first_token, first_k + (first + a + kAhead) * Tile::kStageDepth);
        cursor.advance(1);
      }
    }
  }
}

}  // namespace my_ops
