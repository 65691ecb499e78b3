// What a warp of the fused kernel's consumers does: products of one work after the other, and
// their results. Device only, sm_90a, needs no torch.
#pragma once

#include "common/overlap.cuh"
#include "fp4_matmul/fused_missing.cuh"
#include "fp4_matmul/fused_multiply.cuh"
#include "fp4_matmul/fused_output.cuh"
#include "fp4_matmul/fused_scale.cuh"
#include "fp4_matmul/fused_work.cuh"

namespace my_ops {

template <typename Tile>
__device__ __forceinline__ void consume(const FusedArguments& args, uint32_t base,
                                        FusedBarriers<Tile> barriers, int warp,
                                        WeightSource<Tile>& slots, const FusedWorks& works,
                                        const Amaxes& amaxes) {
  using scalar_t = typename Tile::scalar_t;
  // Ragged weights have no warp to spare (share_scale).
  ResultScale scale;
  if constexpr (Tile::kRagged) scale = scale_of_results<Tile>(args, amaxes);
  const float factor = args.amax == nullptr ? pair_factor<scalar_t, Tile::kFormat>(nullptr)
                                            : pair_factor<scalar_t, Tile::kFormat>(&amaxes.weight);
  const int group = warp / Tile::kRowWarps;

  wait_for_previous_kernel();
  if constexpr (Tile::kWeightBoxes) slots.wait_for_first();
  int first_position = 0;
  for (int number = works.first; number < works.end; number += works.stride) {
    const FusedWork work = works.template at<Tile>(number);
    const int steps = work.steps();
    barriers.share(args.sharers, works.rank, work.shared);
    float sums[Tile::kAccumulators];
#pragma unroll
    for (int i = 0; i < Tile::kAccumulators; ++i) sums[i] = 0.0f;
    if constexpr (Tile::kWeightBoxes) slots.aim(work, work.first_step + group);
    bool fit;
    if (Tile::kDepthGroups == 1 || group == 0) {
      fit = multiply<Tile, 0>(sums, slots, base, barriers, first_position, steps, factor);
    } else {
      fit = multiply<Tile, 1>(sums, slots, base, barriers, first_position, steps, factor);
    }
    if (Tile::kFormat == Fp4Format::mxfp4 && !__all_sync(~0u, fit)) {
      add_missing<Tile>(sums, args, work, warp_row<Tile>(args, work, warp), group);
    }
    // Its start takes as long as what is left, an exchange or the stores.
    if constexpr (Tile::kEndsEarly) {
      if (number + works.stride >= works.end) let_next_kernel_start();
    }
    first_position += steps;
    if constexpr (Tile::kDepthGroups > 1) add_depth_groups<Tile>(sums, base);
    if (number + works.stride < works.end) {
      if constexpr (Tile::kDepthGroups > 1) {
        // The slots are filled when what the second group gave has been read.
        asm volatile("bar.sync 1, %0;" ::"n"(Tile::kConsumers) : "memory");
      }
      if constexpr (!Tile::kBlockSlots) {
        aim_ring(args, slots, works.template at<Tile>(number + works.stride), warp);
        __syncwarp();  // lanes may still read ahead, in slots behind the last step
        fill_ring(slots);
      }
    }
    if (Tile::kDepthGroups > 1 && group > 0) continue;

    if constexpr (!Tile::kRagged) scale = shared_scale<Tile>(base);
    const StripWriter writer(args.out, scale, warp_row<Tile>(args, work, warp));
    const int64_t first_token = int64_t{work.token_tile} * Tile::kTokens;
    if (Tile::kMail || work.split) {
      const auto count_of = [&](int rank) {
        const int its_steps = Tile::kTakesMap ? (rank == 0 ? args.steps / 2 : (args.steps + 1) / 2)
                                              : works.part_begin(rank + 1) - works.part_begin(rank);
        return (first_position - steps + its_steps) * Tile::kStagesOfStep;
      };
      if (works.cluster == 2) {
        exchange_and_store<Tile, 2>(args, base, works, number, first_token, sums, writer, count_of);
      } else if constexpr (Tile::kMail) {
        exchange_and_store<Tile, 1>(args, base, works, number, first_token, sums, writer, count_of);
      } else if constexpr (Tile::kMostSplits > 2) {
        exchange_and_store<Tile, 3>(args, base, works, number, first_token, sums, writer, count_of);
      }
      // The only work. Said here, no registers are kept for the ring.
      if constexpr (Tile::kMail) break;
    } else if constexpr (Tile::kResultBoxes) {
      store_as_boxes<Tile>(args, base, writer, warp, work.row_tile, static_cast<int>(first_token),
                           sums);
    } else {
      store_all<Tile::kStrips, 8>(args, writer, first_token, [&](int j) {
        return make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
      });
    }
  }
  if constexpr (Tile::kResultBoxes) finish_boxes();
  asm volatile("" ::"r"(warp));  // kept in a register: else tiles of 32 ragged rows spill some
}

}  // namespace my_ops
