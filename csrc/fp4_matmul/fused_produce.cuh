// How x comes into the stages of the fused kernel: in its own order, in boxes by the copy engine,
// or as an image by bulk copies, either of one thread. Device only, sm_90a, needs no torch.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fused_output.cuh"
#include "fp4_matmul/fused_step.cuh"
#include "fp4_matmul/fused_work.cuh"

namespace my_ops {

// Blocks that share rows of x (two, hence the mask 3) bring a part of each stage, for all of them.
template <typename Tile>
__device__ __forceinline__ void produce_from_map(const FusedArguments& args, uint32_t base,
                                                 const FusedBarriers<Tile>& barriers,
                                                 const FusedWork& work, StagePlace<Tile>& place,
                                                 int rank) {
  if (threadIdx.x != Tile::kConsumers) return;
  const int box_rows = args.sharers > 1 ? Tile::kTokens / 2 : Tile::kTokens;
  const int first = work.shared ? rank * box_rows : 0;  // row of the stage
  const int row = work.token_tile * Tile::kTokens + first;
  for (int k = work.first_step * kFusedDepth; k < work.end_step * kFusedDepth;
       k += Tile::kStageDepth) {
    const uint32_t full = barriers.full + place.slot * 8;
    sm90::wait_barrier(barriers.empty + place.slot * 8, place.parity ^ 1);
    sm90::arrive_expecting(full, Tile::kStageBytes);
#pragma unroll
    for (int b = 0; b < Tile::kStageDepth / 64; ++b) {
      const uint32_t to = base + place.slot * Tile::kStageBytes + (b * Tile::kTokens + first) * 128;
      if (work.shared) {
        sm90::box_copy_to_ranks(to, args.x_map, row, k + b * 64, full, 3);
        continue;
      }
      for (int r = 0; r < Tile::kTokens; r += box_rows) {
        sm90::box_copy(to + r * 128, args.x_map, row + r, k + b * 64, full);
      }
    }
    place = place.ahead(1);
  }
}

template <typename Tile>
__device__ __forceinline__ void produce_from_image(const FusedArguments& args, uint32_t base,
                                                   const FusedBarriers<Tile>& barriers,
                                                   const FusedWork& work, StagePlace<Tile>& place,
                                                   bool is_first) {
  if (threadIdx.x != Tile::kConsumers) return;
  constexpr int64_t kStepBytes = Tile::kStageBytes * Tile::kStagesOfStep;
  const uint8_t* source =
      args.image + (int64_t{work.token_tile} * args.steps + work.first_step) * kStepBytes;
  const int stages = work.steps() * Tile::kStagesOfStep;
  constexpr int kFirstStages = 2 * Tile::kStagesOfStep;
  for (int i = 0; i < stages; ++i) {
    const int stage = place.slot;
    sm90::wait_barrier(barriers.empty + stage * 8, place.parity ^ 1);
    sm90::arrive_expecting(barriers.full + stage * 8, Tile::kStageBytes);
    sm90::bulk_copy(base + stage * Tile::kStageBytes, source, Tile::kStageBytes,
                    barriers.full + stage * 8);
    source += Tile::kStageBytes;
    place = place.ahead(1);
    if constexpr (Tile::kWeightBoxes) {
      // What is not needed at once comes when the first x is there, the boxes of the weight, too.
      if (is_first && i + 1 == min(kFirstStages, stages)) {
        sm90::wait_barrier(barriers.full, 0);
        sm90::arrive(base + Tile::kFirstX);
      }
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void produce_x(const FusedArguments& args, uint32_t base,
                                          const FusedBarriers<Tile>& barriers,
                                          const FusedWorks& works) {
  StagePlace<Tile> place;
  int stages = 0;
  for (int number = works.first; number < works.end; number += works.stride) {
    const FusedWork work = works.template at<Tile>(number);
    if constexpr (Tile::kTakesMap) {
      produce_from_map<Tile>(args, base, barriers, work, place, works.rank);
    } else {
      produce_from_image<Tile>(args, base, barriers, work, place, number == works.first);
    }
    stages += work.steps() * Tile::kStagesOfStep;
    if (work.split && threadIdx.x == Tile::kConsumers) {
      announce_room<Tile>(base, barriers, stages, works.cluster);
    }
    __syncwarp();
  }
}

}  // namespace my_ops
