// y = x * Wq^T for many rows of x on Hopper's tensor cores: the weight goes from its codes straight
// into the registers of wgmma's operand A; x is operand B in shared memory, in its own order or in
// that of decoded codes. Device only, sm_90a, needs no torch.
//
// Four producer warps bring x (fused_produce.cuh); every consumer warp brings the codes and scales
// of its own 16 rows (WeightRing), 256 along K in a step. The two words that a lane decodes are the
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

// The first of a warp's 16 rows of the weight in a tile. The last ones overlap those before where N
// is not a multiple of 16; both write the same.
template <typename Tile>
__device__ __forceinline__ int warp_row(const FusedArguments& args, const FusedWork& work,
                                        int warp) {
  return min(work.row_tile * Tile::kRows + warp % Tile::kRowWarps * 16,
             static_cast<int>(args.out.N) - 16);
}

template <typename Tile>
__device__ __forceinline__ void start_ring(const FusedArguments& args, WeightRing<Tile>& ring,
                                           const FusedWork& work, int warp) {
  const int group = warp / Tile::kRowWarps;
  ring.aim(warp_row<Tile>(args, work, warp), work.first_step + group,
           (work.steps() - group + Tile::kDepthGroups - 1) / Tile::kDepthGroups);
#pragma unroll
  for (int i = 0; i < Tile::kSlots - 1; ++i) ring.fetch();
}

template <typename Tile>
__device__ __forceinline__ void consume(const FusedArguments& args, uint8_t* shared, uint32_t base,
                                        FusedBarriers<Tile> barriers, int warp,
                                        WeightRing<Tile>& ring, const FusedWorks& works) {
  using scalar_t = typename Tile::scalar_t;
  const FragmentScale weight = fragment_scale<scalar_t, Tile::kFormat>(args.amax);
  const float x_factor =
      args.x_is_nvfp4 ? fragment_scale<__half, Fp4Format::nvfp4>(args.x_amax).sum_factor : 1.0f;
  const ResultScale scale = result_scale(weight.sum_factor, x_factor);
  const int group = warp / Tile::kRowWarps;

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
      fit =
          multiply<Tile, 0>(sums, ring, base, barriers, first_position, steps, weight.scale_factor);
    } else {
      fit =
          multiply<Tile, 1>(sums, ring, base, barriers, first_position, steps, weight.scale_factor);
    }
    if (Tile::kFormat == Fp4Format::mxfp4 && !__all_sync(~0u, fit)) {
      add_missing<Tile>(sums, args, work, warp_row<Tile>(args, work, warp), group);
    }
    first_position += steps;
    const StripWriter writer(args.out, scale, warp_row<Tile>(args, work, warp));
    if (number + works.stride < works.end)
      start_ring(args, ring, works.template at<Tile>(number + works.stride), warp);

    const int64_t first_token = int64_t{work.token_tile} * Tile::kTokens;
    const bool direct = Tile::kDepthGroups == 1 && !work.split;
    const auto strip = [&](int j) {
      return make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
    };
    if (direct) {
      store_all<Tile::kStrips, 8>(args, writer, first_token, strip);
    } else if constexpr (Tile::kDepthGroups == 1) {
      exchange_and_store<Tile>(args, base, works.rank, first_token, sums, writer);
    } else {
      asm volatile("bar.sync 1, %0;" ::"n"(Tile::kConsumers) : "memory");  // x is all read
      float4* const mine = reinterpret_cast<float4*>(shared) + threadIdx.x;
#pragma unroll
      for (int j = 0; j < Tile::kStrips; ++j) mine[j * Tile::kConsumers] = strip(j);
      sync_roles<Tile>(work.split);
      if (work.split) {
        add_and_store<Tile, 2>(args, base, works.rank, first_token, writer);
      } else {
        add_and_store<Tile, 1>(args, base, works.rank, first_token, writer);
      }
      sync_roles<Tile>(work.split);
    }
  }
  asm volatile("" ::"r"(warp));  // kept in a register: else tiles of 32 ragged rows spill some
}

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kThreads)
    fp4_fused_kernel(const __grid_constant__ FusedArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const bool from_rows = Tile::kTakesRows && args.image == nullptr;
  // Until the kernel that makes the image is done, only the weight may be touched. Without one the
  // kernel in front is anyone's, and may be the one that writes the weight. The next kernel starts
  // early where it is one like this: blocks that make an image would gather on the few idle SMs.
  if (args.image == nullptr) let_next_kernel_start();

  const uint32_t base = shared_address(shared);
  const FusedBarriers<Tile> barriers{base + Tile::kBarriers,
                                     base + Tile::kBarriers + Tile::kStages * 8};
  // By way of a shuffle: the compiler then knows that a warp takes one branch, and leaves what is
  // the same for all lanes in uniform registers, a tenth of the loop's instructions.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);

  WeightRing<Tile> ring{args, base + Tile::kRings + warp * Tile::kSlots * Tile::kSlotBytes};
  if constexpr (!Tile::kTakesMap) {
    if (args.image == nullptr) wait_for_previous_kernel();
    if (warp < Tile::kConsumers / 32) {
      const FusedWorks works(args);
      start_ring(args, ring, works.template at<Tile>(works.first), warp);
    }
  }
  if (threadIdx.x == Tile::kConsumers) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      sm90::init_barrier(barriers.full + stage * 8, from_rows ? kProducers / 32 : 1);
      sm90::init_barrier(barriers.empty + stage * 8, Tile::kRowWarps * args.sharers);
    }
    if constexpr (Tile::kDepthGroups == 1) init_exchange<Tile>(base);
    sm90::fence_barrier_init();
  }
  const bool in_cluster = Tile::kDepthGroups == 1 && args.splits * args.sharers > 1;
  __syncthreads();
  if (in_cluster) {
    sm90::arrive_at_cluster();
    sm90::wait_cluster();
  }

  if (warp >= Tile::kConsumers / 32) {
    wait_for_previous_kernel();
    if constexpr (!Tile::kTakesRows) sm90::release_registers<Tile::kProducerRegisters>();
    StageCursor<Tile> cursor(0);
    const FusedWorks works(args);
    for (int number = works.first; number < works.end; number += works.stride) {
      const FusedWork work = works.template at<Tile>(number);
      if constexpr (Tile::kTakesRows) {
        if (from_rows) produce_from_rows<Tile>(args, base, barriers, work, cursor);
      }
      if constexpr (Tile::kTakesMap) {
        produce_from_map<Tile>(args, base, barriers, work, cursor, works.rank);
      } else if (!from_rows) {
        produce_from_image<Tile>(args, base, barriers, work, cursor);
      }
      __syncwarp();
      if constexpr (Tile::kDepthGroups > 1) {
        // The stages hold sums until every block of the cluster has added its share.
        sync_roles<Tile>(work.split);
        sync_roles<Tile>(work.split);
        sm90::fence_for_copies();
      }
    }
  } else {
    const FusedWorks works(args);
    if constexpr (Tile::kTakesMap) {
      wait_for_previous_kernel();
      start_ring(args, ring, works.template at<Tile>(works.first), warp);
    }
    wait_for_previous_kernel();
    if constexpr (!Tile::kTakesRows) sm90::claim_registers<Tile::kRegisters>();
    consume<Tile>(args, shared, base, barriers, warp, ring, works);
  }
  // The other block may still send here.
  if (in_cluster) {
    sm90::arrive_at_cluster();
    sm90::wait_cluster();
  }
#endif
}

}  // namespace my_ops
