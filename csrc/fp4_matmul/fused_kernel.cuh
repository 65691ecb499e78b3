// y = x * Wq^T for many rows of x on Hopper's tensor cores: the weight goes from its codes straight
// into the registers of wgmma's operand A; x is operand B in shared memory, in its own order or in
// that of decoded codes. Device only, sm_90a, needs no torch.
//
// A producer warp brings x (fused_produce.cuh); every consumer warp brings the codes and scales of
// its own 16 rows (WeightRing), 256 along K in a step, but for ragged ones, which the three other
// producers bring (fused_slots.cuh). The two words that a lane decodes are the
// operands of two instructions; while the tensor cores work on these the next two are decoded, in
// other registers. A block takes one tile after the other.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_mbarrier.cuh"
#include "common/sm90_warpgroup.cuh"
#include "fp4_matmul/fused_missing.cuh"
#include "fp4_matmul/fused_multiply.cuh"
#include "fp4_matmul/fused_output.cuh"
#include "fp4_matmul/fused_produce.cuh"
#include "fp4_matmul/fused_work.cuh"

namespace my_ops {

template <typename Tile>
__device__ __forceinline__ void consume(const FusedArguments& args, uint32_t base,
                                        FusedBarriers<Tile> barriers, int warp,
                                        WeightSource<Tile>& slots, const FusedWorks& works,
                                        const Amaxes& amaxes) {
  using scalar_t = typename Tile::scalar_t;
  // Two calls each: a pointer that may be null would have the numbers lie in memory.
  const FragmentScale weight = args.amax == nullptr
                                   ? fragment_scale<scalar_t, Tile::kFormat>(nullptr)
                                   : fragment_scale<scalar_t, Tile::kFormat>(&amaxes.weight);
  float x_factor = 1.0f;
  if (args.x_is_nvfp4) {
    const FragmentScale of_x = args.x_amax == nullptr
                                   ? fragment_scale<__half, Fp4Format::nvfp4>(nullptr)
                                   : fragment_scale<__half, Fp4Format::nvfp4>(&amaxes.x);
    x_factor = of_x.sum_factor;
  }
  const ResultScale scale = result_scale(weight.sum_factor, x_factor);
  const int group = warp / Tile::kRowWarps;

  wait_for_previous_kernel();
  int first_position = 0;
  for (int number = works.first; number < works.end; number += works.stride) {
    const FusedWork work = works.template at<Tile>(number);
    const int steps = work.steps();
    barriers.share(args.sharers, works.rank, work.shared);
    float sums[Tile::kAccumulators];
#pragma unroll
    for (int i = 0; i < Tile::kAccumulators; ++i) sums[i] = 0.0f;
    bool fit;
    if (Tile::kDepthGroups == 1 || group == 0) {
      fit = multiply<Tile, 0>(sums, slots, base, barriers, first_position, steps,
                              weight.scale_factor);
    } else {
      fit = multiply<Tile, 1>(sums, slots, base, barriers, first_position, steps,
                              weight.scale_factor);
    }
    if (Tile::kFormat == Fp4Format::mxfp4 && !__all_sync(~0u, fit)) {
      add_missing<Tile>(sums, args, work, warp_row<Tile>(args, work, warp), group);
    }
    // Its start takes as long as what is left, an exchange or the stores (image_starts_early).
    if constexpr (Tile::kMail || !Tile::kRagged) {
      if (number + works.stride >= works.end) let_next_kernel_start();
    }
    first_position += steps;
    if constexpr (Tile::kDepthGroups > 1) add_depth_groups<Tile>(sums, base);
    if (number + works.stride < works.end) {
      if constexpr (Tile::kDepthGroups > 1) {
        // The slots are filled when what the second group gave has been read.
        asm volatile("bar.sync 1, %0;" ::"n"(Tile::kConsumers) : "memory");
      }
      if constexpr (!Tile::kRagged) {
        aim_ring(args, slots, works.template at<Tile>(number + works.stride), warp);
        fill_ring(slots);
      }
    }
    if (Tile::kDepthGroups > 1 && group > 0) continue;

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
    } else if constexpr (Tile::kBoxes) {
      store_as_boxes<Tile>(args, base, writer, warp, work.row_tile, static_cast<int>(first_token),
                           sums);
    } else {
      store_all<Tile::kStrips, 8>(args, writer, first_token, [&](int j) {
        return make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
      });
    }
  }
  if constexpr (Tile::kBoxes) finish_boxes();
  asm volatile("" ::"r"(warp));  // kept in a register: else tiles of 32 ragged rows spill some
}

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kThreads)
    fp4_fused_kernel(const __grid_constant__ typename Tile::Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  // Until the kernel that makes the image is done, only the weight may be touched. Without one the
  // kernel in front is anyone's, and may be the one that writes the weight. The next kernel starts
  // early where it is one like this, else at the end of the last loop (consume).
  if (args.image == nullptr) let_next_kernel_start();

  const uint32_t base = shared_address(shared);
  const FusedBarriers<Tile> barriers{base + Tile::kBarriers,
                                     base + Tile::kBarriers + Tile::kStages * 8};
  // By way of a shuffle: the compiler then knows that a warp takes one branch, and leaves what is
  // the same for all lanes in uniform registers, a tenth of the loop's instructions.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);

  const bool consumes = warp < Tile::kConsumers / 32;
  FusedWorks works(args);
  if constexpr (Tile::kMail) works.share_tiles();
  Amaxes amaxes;
  WeightSource<Tile> weight(args, base, warp);
  if (consumes) {
    if constexpr (!Tile::kRagged)
      aim_ring(args, weight, works.template at<Tile>(works.first), warp);
    if (args.image != nullptr) {
      amaxes.load(args);  // before what would keep it waiting
      if constexpr (!Tile::kRagged) fill_ring(weight);
    }
  }
  if constexpr (Tile::kRagged) {
    if (threadIdx.x == Tile::kConsumers + 32) {
      sm90::prefetch_map(args.code_maps[0]);
      sm90::prefetch_map(args.code_maps[1]);
    }
  }
  if (threadIdx.x == Tile::kConsumers) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      sm90::init_barrier(barriers.full + stage * 8, 1);
      sm90::init_barrier(barriers.empty + stage * 8, Tile::kRowWarps * args.sharers);
    }
    if constexpr (Tile::kRagged) WeightProducer<Tile>::init_barriers(base);
    if (Tile::kMail || works.cluster > 1) init_exchange<Tile>(base, works.cluster);
    sm90::fence_barrier_init();
  }
  __syncthreads();
  if (works.cluster > 1) {
    sm90::arrive_at_cluster();
    sm90::wait_cluster();
  }

  if (!consumes) {
    sm90::release_registers<Tile::kProducerRegisters>();
    const int weight_part = warp - Tile::kConsumers / 32 - 1;
    if (weight_part < 0) {
      wait_for_previous_kernel();
      produce_x<Tile>(args, base, barriers, works);
    } else if constexpr (Tile::kRagged) {
      if (args.image == nullptr) wait_for_previous_kernel();
      WeightProducer<Tile>(args, base, weight_part).produce(works);
    }
  } else {
    sm90::claim_registers<Tile::kRegisters>();
    if (args.image == nullptr) {
      wait_for_previous_kernel();
      amaxes.load(args);
      if constexpr (!Tile::kRagged) fill_ring(weight);
    }
    if constexpr (Tile::kRagged && Tile::kDepthGroups > 1) {
      // Only now: 13.0 us for 13.6 at M = 32, 5003 x 4112, but of one group 19.8 for 19.4 at 128.
      WeightSlots<Tile> slots(args, base, warp);
      consume<Tile>(args, base, barriers, warp, slots, works, amaxes);
    } else {
      consume<Tile>(args, base, barriers, warp, weight, works, amaxes);
    }
  }
  // Another block may still release stages here. Those with other parts of K have sent their sums.
  if (args.sharers > 1) {
    sm90::arrive_at_cluster();
    sm90::wait_cluster();
  }
#endif
}

}  // namespace my_ops
