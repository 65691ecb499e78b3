// y = x * Wq^T for many rows of x on Hopper's tensor cores: the weight goes from its codes straight
// into the registers of wgmma's operand A; x is operand B in shared memory, in its own order or in
// that of decoded codes. Device only, sm_90a, needs no torch.
//
// A producer warp brings x (fused_produce.cuh); every consumer warp brings the codes and scales of
// its own 16 rows (WeightRing), 256 along K in a step. Those of all come from the copy engine where
// that is faster (fused_boxes.cuh), ragged ones from the three other producers (fused_slots.cuh).
// The two words that a lane decodes are the operands of two instructions; while the tensor cores
// work on these the next two are decoded, in other registers. A block takes one tile after the
// other.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_mbarrier.cuh"
#include "common/sm90_warpgroup.cuh"
#include "fp4_matmul/fused_consume.cuh"
#include "fp4_matmul/fused_produce.cuh"

namespace my_ops {

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kThreads)
    fp4_fused_kernel(const __grid_constant__ typename Tile::Arguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  // Until the kernel that makes the image is done, only the weight may be touched. Without one the
  // kernel in front is anyone's, and may be the one that writes the weight. The next kernel starts
  // early where it is one like this, else at the end of the last loop (consume); with ragged rows
  // and a large tile, when this one is done.
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
  const auto load_amaxes = [&] {
    if (Tile::kRagged || Tile::kFactor) amaxes.load(args);  // else only share_scale() needs them
  };
  WeightSource<Tile> weight(args, base, warp);
  if (consumes) {
    const FusedWork work = works.template at<Tile>(works.first);
    if constexpr (!Tile::kBlockSlots) aim_ring(args, weight, work, warp);
    if (args.image != nullptr) {
      load_amaxes();  // before what would keep it waiting
      if constexpr (!Tile::kBlockSlots) fill_ring(weight);
      if constexpr (Tile::kWeightBoxes) weight.fetch_first(args, work, warp);
    }
  }
  if constexpr (Tile::kRagged) {
    if (threadIdx.x == Tile::kConsumers + 32) {
      sm90::prefetch_map(args.code_maps[0]);
      sm90::prefetch_map(args.code_maps[1]);
    }
  }
  if (threadIdx.x == Tile::kConsumers) {
    if constexpr (!Tile::kRagged) sm90::init_barrier(base + Tile::kScalePlace, 1);
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      sm90::init_barrier(barriers.full + stage * 8, 1);
      sm90::init_barrier(barriers.empty + stage * 8, Tile::kRowWarps * args.sharers);
    }
    if constexpr (Tile::kRagged) WeightProducer<Tile>::init_barriers(base);
    if (Tile::kMail || works.cluster > 1) init_exchange<Tile>(base, works.cluster);
    sm90::fence_barrier_init();
  }
  const int weight_part = warp - Tile::kConsumers / 32 - 1;
  const bool asks_for_boxes = Tile::kWeightBoxes && weight_part == 0 && sm90::elect_one();
  if constexpr (Tile::kWeightBoxes) {
    if (asks_for_boxes) BoxProducer<Tile>::begin(args, base);
  }
  __syncthreads();
  if (works.cluster > 1) {
    sm90::arrive_at_cluster();
    sm90::wait_cluster();
  }

  if (!consumes) {
    sm90::release_registers<Tile::kProducerRegisters>();
    if (weight_part < 0) {
      wait_for_previous_kernel();
      produce_x<Tile>(args, base, barriers, works);
    } else if constexpr (Tile::kRagged) {
      if (args.image == nullptr) wait_for_previous_kernel();
      WeightProducer<Tile>(args, base, weight_part).produce(works);
    } else if constexpr (Tile::kWeightBoxes) {
      wait_for_previous_kernel();
      if (asks_for_boxes) BoxProducer<Tile>(args, works, base).copy_all();
    }
    if constexpr (!Tile::kRagged) {
      if (weight_part == kWeightWarps - 1) share_scale<Tile>(args, base);
    }
  } else {
    sm90::claim_registers<Tile::kRegisters>();
    if (args.image == nullptr) {
      wait_for_previous_kernel();
      load_amaxes();
      if constexpr (!Tile::kBlockSlots) fill_ring(weight);
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
