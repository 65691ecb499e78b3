// The loop of the fused kernel's consumers: decoding in time with the tensor cores. Device only,
// sm_90a, needs no torch.
#pragma once

#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fused_step.cuh"
#include "fp4_matmul/wgmma_registers.cuh"

namespace my_ops {

// Adds the products of a tile to the sums: `steps` of the block's steps, of which this warp has
// every kDepthGroups-th from kDepthGroup on. kDepthGroup is known to the compiler so that the
// addresses of stages stay in uniform registers.
template <typename Tile, int kDepthGroup>
__device__ __forceinline__ bool multiply(float (&sums)[Tile::kAccumulators], WeightRing<Tile>& ring,
                                         uint32_t base, const FusedBarriers<Tile>& barriers,
                                         int first_position, int steps, float scale_factor) {
  using scalar_t = typename Tile::scalar_t;
  constexpr int kStagesOfStep = Tile::kStagesOfStep;
  constexpr int kWords = Tile::kWords, kBuffers = Tile::kBuffers;
  constexpr int kGroupsOfStage = Tile::kStageDepth / 32 / kWords;
  static_assert(kGroupsOfStage >= kBuffers, "a stage is released while the next is in work");
  uint32_t fragments[kBuffers][2 * kWords][4];  // buffer, instruction
  StageCursor<Tile> cursor((first_position + kDepthGroup) * kStagesOfStep);
  int held = -1;  // the stage before
  bool misfits = false;
#pragma unroll 1
  for (int step = kDepthGroup; step < steps; step += Tile::kDepthGroups) {
    const uint32_t slot = ring.next();
    uint32_t tile = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      HalfStep<Tile> words(slot, half, ring.shift, scale_factor);
      misfits |= words.misfits;
      if (half == 0) ring.fetch();
#pragma unroll
      for (int p = 0; p < 4 / kWords; ++p) {
        const int group = (4 / kWords * half + p) % kGroupsOfStage;  // of the stage
        auto& operands = fragments[p % kBuffers];
        sm90::wgmma_wait<kBuffers - 1>();  // the products that read these registers
        if (group == kBuffers - 1 && held >= 0) barriers.release(held);
#pragma unroll
        for (int i = 0; i < kWords; ++i) words.decode_words(p * kWords + i, operands + 2 * i);
        if (group == 0) {
          sm90::wait_barrier(barriers.full + cursor.stage * 8, cursor.parity);
          tile = sm90::tile_address(base + cursor.stage * Tile::kStageBytes);
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
          held = cursor.stage;
          const bool last = half == 1 && p == 4 / kWords - 1;
          cursor.advance(last ? 1 + (Tile::kDepthGroups - 1) * kStagesOfStep : 1);
        }
      }
    }
  }
  sm90::wgmma_wait<0>();
  sm90::wgmma_pin(sums);
  if (held >= 0) barriers.release(held);
  return misfits;
}

}  // namespace my_ops
