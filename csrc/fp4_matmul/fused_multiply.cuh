// The loop of the fused kernel's consumers: decoding in time with the tensor cores. Device only,
// sm_90a, needs no torch.
#pragma once

#include "common/sm90_mbarrier.cuh"
#include "common/sm90_wgmma_registers.cuh"
#include "fp4_matmul/fused_natural.cuh"

namespace my_ops {

// Adds the products of a tile to the sums: `steps` of the block's steps, of which this warp has
// every kDepthGroups-th from kDepthGroup on. kDepthGroup is known to the compiler so that the
// addresses of stages stay in uniform registers.
template <typename Tile, int kDepthGroup>
__device__ __forceinline__ bool multiply(float (&sums)[Tile::kAccumulators],
                                         WeightSource<Tile>& weight, uint32_t base,
                                         const FusedBarriers<Tile>& barriers, int first_position,
                                         int steps, float scale_factor) {
  using scalar_t = typename Tile::scalar_t;
  constexpr int kStagesOfStep = Tile::kStagesOfStep;
  constexpr int kWords = Tile::kWords, kBuffers = Tile::kBuffers;
  constexpr int kGroupsOfStage = Tile::kStageDepth / 32 / kWords;
  static_assert(kGroupsOfStage >= kBuffers, "a stage is released while the next is in work");
  uint32_t fragments[kBuffers][2 * kWords][4];  // buffer, instruction
  auto place = StagePlace<Tile>::after((first_position + kDepthGroup) * kStagesOfStep);
  int held = -1;  // the stage before
  using Words = std::conditional_t<Tile::kTakesMap, NaturalHalfStep<Tile>, HalfStep<Tile>>;
  Words words(scale_factor);
  uint32_t slot = 0;
  SlotRearranger rearranger;
  uint32_t next_slot = 0;
  weight.begin(first_position + kDepthGroup);
  if constexpr (Tile::kLoadsAhead) {
    slot = weight.next();
    if constexpr (Tile::kTakesMap) {
      rearranger.begin(slot);
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) rearranger.do_quarter(quarter);
      __syncwarp();
    }
    words.load(weight, slot, 0);
  }
#pragma unroll 1
  for (int step = kDepthGroup; step < steps; step += Tile::kDepthGroups) {
    uint32_t tile = 0;
    const bool more = step + Tile::kDepthGroups < steps;
    if constexpr (!Tile::kLoadsAhead) {
      slot = weight.next();
      words.load(weight, slot, 0);
    }
    if constexpr (!Tile::kBlockSlots) weight.fetch();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int p = 0; p < 4 / kWords; ++p) {
        const int group = (4 / kWords * half + p) % kGroupsOfStage;  // of the stage
        auto& operands = fragments[p % kBuffers];
        sm90::wgmma_wait<kBuffers - 1>();  // the products that read these registers
        if (group == kBuffers - 1 && held >= 0) barriers.release(held);
        if (p == 0) words.begin();
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const int w = p * kWords + i;
          words.decode_word(w, operands + 2 * i);
          if constexpr (Tile::kTakesMap) {
            if (half == 0 && w == 3) rearranger.begin(next_slot = weight.next());
            if (half == 1) rearranger.do_quarter(w);
            if (half == 1 && w == 3) __syncwarp();
          }
          // The next ones, while the tensor cores are at work.
          if (w < 3) continue;
          if (half == 0) {
            words.load(weight, slot, 1);
            continue;
          }
          const uint32_t read = slot;
          if constexpr (Tile::kLoadsAhead) {
            if constexpr (!Tile::kWeightBoxes) {
              slot = Tile::kTakesMap || Tile::kRagged ? next_slot : weight.next();
            }
            words.load(weight, slot, 0);
          }
          if constexpr (Tile::kRagged) weight.release(read);
        }
        // Here: with this wait elsewhere the compiler has every product wait for the one before it
        // (37.4 us for 30.5 at M = 128, 5003 x 4112, K undivided). Where there is no next slot this
        // one is read again.
        if constexpr (Tile::kRagged && Tile::kLoadsAhead) {
          if (half == 1 && p == 0) next_slot = weight.next(more);
        }
        if (group == 0) {
          sm90::wait_barrier(barriers.full + place.slot * 8, place.parity);
          tile = sm90::tile_address(base + place.slot * Tile::kStageBytes);
        }
        // All of the slot is in registers. In another place this, too, has products wait.
        if constexpr (Tile::kWeightBoxes) {
          if (half == 1 && p == 0) {
            if constexpr (Tile::kLoadsAhead) {
              slot = weight.release_for_next();
            } else {
              weight.release();
            }
          }
        }
        sm90::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2 * kWords; ++i) {
          const int chunk = group * 2 * kWords + i;
          sm90::WgmmaRegisters<scalar_t, Tile::kTokens>::run(
              sums, operands[i],
              sm90::descriptor_at<128>(tile + chunk / 4 * (Tile::kTokens * 128 >> 4) +
                                       chunk % 4 * sm90::kDescriptorStep),
              true);
        }
        sm90::wgmma_commit();
        if (group == kGroupsOfStage - 1) {
          held = place.slot;
          const bool last = half == 1 && p == 4 / kWords - 1;
          place = place.ahead(last ? 1 + (Tile::kDepthGroups - 1) * kStagesOfStep : 1);
        }
      }
    }
  }
  sm90::wgmma_wait<0>();
  sm90::wgmma_pin(sums);
  if (held >= 0) barriers.release(held);
  return !Words::kMx || words.fitting.all_fit();
}

}  // namespace my_ops
