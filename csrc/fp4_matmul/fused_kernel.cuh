// y = x * Wq^T for many rows of x on Hopper's tensor cores: the weight goes from its codes straight
// into the registers of wgmma's operand A; x, as an image (x_image.cuh), is operand B in shared
// memory. Device only, sm_90a, needs no torch.
//
// One producer warp brings x by bulk copies, a step of 128 along K at a time; every consumer warp
// brings the codes and scales of its own 16 rows (WeightRing). The two words that a lane decodes
// are the operands of two instructions; while the tensor cores work on these the next two are
// decoded, in other registers. A block takes one tile after the other and the copies run ahead of
// it.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "common/sm90_warpgroup.cuh"
#include "fp4_matmul/fp4_misfits.cuh"
#include "fp4_matmul/fused_output.cuh"
#include "fp4_matmul/fused_step.cuh"
#include "fp4_matmul/wgmma_registers.cuh"

namespace my_ops {

template <typename Tile>
__device__ __forceinline__ void produce_image(const FusedArguments& args, uint32_t base,
                                              const FusedBarriers<Tile>& barriers, int first_step,
                                              int end_step, int first_work, int next_work) {
  StageCursor<Tile> cursor(0);
  for (int work = first_work; work < args.row_tiles * args.token_tiles; work += next_work) {
    const int64_t token_tile = work % args.token_tiles;
    const uint8_t* source = args.image + (token_tile * args.steps + first_step) * Tile::kStageBytes;
    for (int step = first_step; step < end_step; ++step) {
      const int stage = cursor.stage;
      if (threadIdx.x % 32 == 0) {
        sm90::wait_barrier(barriers.empty + stage * 8, cursor.parity ^ 1);
        sm90::arrive_expecting(barriers.full + stage * 8, Tile::kStageBytes);
        sm90::bulk_copy(base + stage * Tile::kStageBytes, source, Tile::kStageBytes,
                        barriers.full + stage * 8);
      }
      source += Tile::kStageBytes;
      cursor.advance(1);
    }
    __syncwarp();
    if (!args.direct) {
      // The stages hold sums until every block of the cluster has added its share.
      sm90::sync_cluster();
      sm90::sync_cluster();
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
  }
}

// kDepthGroup is known to the compiler so that the addresses of stages stay in uniform registers:
// 26.7 us at 64 rows of x, 8192 x 8192, against 28.8.
template <typename Tile, int kDepthGroup>
__device__ __forceinline__ void consume_image(const FusedArguments& args, uint8_t* shared,
                                              uint32_t base, const FusedBarriers<Tile>& barriers,
                                              WeightRing<Tile>& ring, int end_step, int first_work,
                                              int rank) {
  using scalar_t = typename Tile::scalar_t;
  const int lane = threadIdx.x % 32;
  const FragmentScale weight = fragment_scale<scalar_t, Tile::kFormat>(args.amax);
  const float x_factor =
      args.x_is_nvfp4 ? fragment_scale<__half, Fp4Format::nvfp4>(args.x_amax).sum_factor : 1.0f;
  const ResultScale scale = result_scale(weight.sum_factor, x_factor);
  const int steps = end_step - (ring.first_step - kDepthGroup);

  int first_position = 0;
  const int works = args.row_tiles * args.token_tiles;
  for (int work = first_work; work < works; work += ring.next_work, first_position += steps) {
    float sums[Tile::kAccumulators];
#pragma unroll
    for (int i = 0; i < Tile::kAccumulators; ++i) sums[i] = 0.0f;
    uint32_t fragments[2][2][4];  // buffer, instruction
    StageCursor<Tile> cursor(first_position + kDepthGroup);
    int held = -1;  // the stage of the step before
    for (int step = kDepthGroup; step < steps; step += Tile::kDepthGroups) {
      const uint8_t* const slot = ring.next();
      const uint4 low = *reinterpret_cast<const uint4*>(slot + lane * 16);
      const uint4 high = *reinterpret_cast<const uint4*>(slot + 512 + lane * 16);
      const SlotScales<Tile> scales(slot, weight.scale_factor);
      ring.fetch();
      sm90::wait_barrier(barriers.full + cursor.stage * 8, cursor.parity);
      const uint64_t tile = sm90::tile_descriptor<128>(base + cursor.stage * Tile::kStageBytes);
      uint32_t low_words[4] = {low.x, low.y, low.z, low.w};
      uint32_t high_words[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        sm90::wgmma_wait<1>();  // the products of the words before last: their registers are free
        if (w == 1 && held >= 0) barriers.release(held);
        // Not before the wait, or the tensor cores idle while all words are decoded at once.
        asm volatile("" : "+r"(low_words[w]), "+r"(high_words[w]));
        scales.decode_words(w, low_words[w], high_words[w], fragments[w % 2]);
        sm90::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int chunk = 2 * w + i;
          sm90::WgmmaRegisters<scalar_t, Tile::kTokens>::run(
              sums, fragments[w % 2][i],
              tile + chunk / 4 * (Tile::kTokens * 128 >> 4) + chunk % 4 * sm90::kDescriptorStep,
              true);
        }
        sm90::wgmma_commit();
      }
      held = cursor.stage;
      cursor.advance(Tile::kDepthGroups);
    }
    sm90::wgmma_wait<0>();
    sm90::wgmma_pin(sums);
    if (held >= 0) barriers.release(held);

    const int64_t first_token = int64_t{work % args.token_tiles} * Tile::kTokens;
    const int first_n = work / args.token_tiles * Tile::kRows + ring.warp_row;
    const auto strip = [&](int j) {
      return make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
    };
    const StripWriter writer(args.out, scale, first_n);
    if (args.direct && args.out.type == DenseType::float16) {
#pragma unroll
      for (int j = 0; j < Tile::kStrips; ++j) {
        writer.store_pairs<__half>(first_token + 8 * j, strip(j));
      }
    } else if (args.direct) {
#pragma unroll
      for (int j = 0; j < Tile::kStrips; ++j) {
        writer.store_pairs<__nv_bfloat16>(first_token + 8 * j, strip(j));
      }
    } else {
      asm volatile("bar.sync 1, %0;" ::"n"(Tile::kConsumers) : "memory");  // x is all read
      float4* const mine = reinterpret_cast<float4*>(shared) + threadIdx.x;
#pragma unroll
      for (int j = 0; j < Tile::kStrips; ++j) mine[j * Tile::kConsumers] = strip(j);
      sm90::sync_cluster();
      add_and_store<Tile>(args, base, rank, first_token, writer);
      sm90::sync_cluster();
    }
  }
}

template <typename Tile>
__global__ void
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
__launch_bounds__(Tile::kThreads, 1)
#else
__launch_bounds__(32)  // no body: the host can tell
#endif
    fp4_fused_kernel(const FusedArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const FusedBarriers<Tile> barriers{base + Tile::kBarriers,
                                     base + Tile::kBarriers + Tile::kStages * 8};
  const int rank = blockIdx.x % args.splits;
  const int first_work = blockIdx.x / args.splits, next_work = gridDim.x / args.splits;
  const int first_step = static_cast<int>(int64_t{args.steps} * rank / args.splits);
  const int end_step = static_cast<int>(int64_t{args.steps} * (rank + 1) / args.splits);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      sm90::init_barrier(barriers.full + stage * 8, 1);
      sm90::init_barrier(barriers.empty + stage * 8, Tile::kRowThreads / 32);
    }
    sm90::fence_barrier_init();
  }
  __syncthreads();

  // Until the kernel that makes the image is done, only the weight may be touched.
  if (threadIdx.x >= Tile::kConsumers) {
    sm90::release_registers<24>();
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (args.misfits != nullptr && any_misfit(args.misfits)) return;
    if (threadIdx.x < Tile::kConsumers + 32) {
      produce_image<Tile>(args, base, barriers, first_step, end_step, first_work, next_work);
    }
  } else {
    sm90::claim_registers<Tile::kRegisters>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int first = first_step + warp * 32 / Tile::kRowThreads;
    WeightRing<Tile> ring{args,
                          shared + Tile::kRings + warp * Tile::kSlots * Tile::kSlotBytes,
                          warp % (Tile::kRowThreads / 32) * 16,
                          first,
                          end_step,
                          first < end_step ? args.row_tiles * args.token_tiles : 0,
                          next_work,
                          first_work,
                          first};
#pragma unroll
    for (int i = 0; i < Tile::kSlots - 1; ++i) ring.fetch();
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (args.misfits != nullptr && any_misfit(args.misfits)) return;
    if (Tile::kDepthGroups == 1 || warp * 32 < Tile::kRowThreads) {
      consume_image<Tile, 0>(args, shared, base, barriers, ring, end_step, first_work, rank);
    } else {
      consume_image<Tile, 1>(args, shared, base, barriers, ring, end_step, first_work, rank);
    }
  }
#endif
}

}  // namespace my_ops
