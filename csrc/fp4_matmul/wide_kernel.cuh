// y = x * b on Hopper's tensor cores where b's blocks run along the dimension that is not
// contracted, as the gradients' do: b comes widened to 16 bits (widen_kernel.cuh), x is dense along
// either dimension. Device only, sm_90a, needs no torch.
//
// One warp has the copy engine fill a ring of stages with boxes of both. The tensor cores read
// either layout, so nothing is transposed: two warpgroups multiply 64 rows of the factor each,
// operand A, by the rows of x. A block takes one tile after the other, the copies run ahead, and
// results leave while the next tile is at work (box_output.cuh).
//
// Shared memory sets the pace: the instructions read 80 bytes a cycle, the copies bring 48, it has
// 128. The product of n = 4096 takes 168 us on an H200, cuBLAS 171; widening adds 12. The tensor
// cores are at work in 95 of 100 cycles; power sets the clock, 1.66 GHz. A warpgroup that decodes
// into the stages, instead of widening, takes 1400 cycles for a stage that the tensor cores
// multiply in 1024. The two warpgroups do not hide each other's ends of tiles, however far one is
// in front: alone, one reaches little more than half of the speed of both.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_cluster.cuh"
#include "common/sm90_mbarrier.cuh"
#include "common/sm90_warpgroup.cuh"
#include "common/tile_position.cuh"
#include "fp4_matmul/fp4_misfits.cuh"
#include "fp4_matmul/wide_output.cuh"

namespace my_ops {

// A lane for each box: of the factor, which is this block's own, and of x, half of which it brings
// for both blocks.
template <typename Tile>
__device__ __forceinline__ void fill_stages(const WideArguments& args, uint32_t base, int rank) {
  constexpr int kFactorBoxes = kWideRows / 64, kXBoxes = Tile::kCols / Tile::kBoxCols;
  constexpr int kBoxBytes = 64 * kWideDepth * 2, kXBoxBytes = Tile::kBoxCols * kWideDepth * 2;
  const int lane = threadIdx.x % 32, x_box = lane - kFactorBoxes;
  const bool of_x = x_box >= 0 && x_box < kXBoxes && x_box % kWideCluster == rank;

  WideRing<Tile> ring{base};
  for (int tile = blockIdx.x / kWideCluster; tile < args.row_tiles * args.token_tiles;
       tile += gridDim.x / kWideCluster) {
    const auto at = tile_position(tile, args.row_tiles, args.token_tiles);
    const int first_n = (at.row * kWideCluster + rank) * kWideRows + lane * 64;
    const int first_m = at.col * Tile::kCols + x_box * Tile::kBoxCols;
    for (int step = 0; step < args.steps; ++step) {
      const int depth = step * kWideDepth;
      sm90::wait_barrier(ring.empty(ring.stage), ring.parity ^ 1);
      if (lane == 0) sm90::arrive_expecting(ring.full(), Tile::kStageBytes);
      __syncwarp();
      if (lane < kFactorBoxes) {
        sm90::box_copy(ring.memory() + lane * kBoxBytes, args.factor, depth, first_n, ring.full());
      } else if (of_x) {
        sm90::box_copy_to_ranks(ring.memory() + Tile::kFactorBytes + x_box * kXBoxBytes, args.x,
                                Tile::kX == Major::depth ? first_m : depth,
                                Tile::kX == Major::depth ? depth : first_m, ring.full(),
                                (1 << kWideCluster) - 1);
      }
      ring.next();
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void multiply_stages(const WideArguments& args, uint32_t base,
                                                int rank) {
  constexpr bool kOuterX = Tile::kX == Major::outer;
  using Wgmma = sm90::Wgmma<Tile::kElement, Tile::kCols, true, kOuterX>;
  constexpr uint64_t kStepX = kOuterX ? sm90::kOuterDescriptorStep : sm90::kDescriptorStep;
  constexpr int kBlockBytes = 64 * kWideDepth * 2;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const uint64_t first_a = sm90::outer_tile_descriptor(base + warp / 4 * kBlockBytes, kBlockBytes);
  const uint32_t x = base + Tile::kFactorBytes;
  const uint64_t first_b =
      kOuterX ? sm90::outer_tile_descriptor(x, kBlockBytes) : sm90::tile_descriptor<128>(x);
  const ResultScale scale = result_scale(sum_factor<typename Tile::scalar_t>(args), 1.0f);

  WideRing<Tile> ring{base};
  // Free again when every warp of both blocks, which share x, is done with it.
  const auto release_last = [&] {
    __syncwarp();
    if (lane < kWideCluster) sm90::arrive_at_rank(ring.empty(ring.last()), lane);
  };
  for (int tile = blockIdx.x / kWideCluster; tile < args.row_tiles * args.token_tiles;
       tile += gridDim.x / kWideCluster) {
    float sums[Tile::kAccumulators];
    for (int step = 0; step < args.steps; ++step) {
      sm90::wait_barrier(ring.full(), ring.parity);
      const uint64_t a = first_a + ring.stage * (Tile::kStageBytes >> 4);
      const uint64_t b = first_b + ring.stage * (Tile::kStageBytes >> 4);
      sm90::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kWideDepth / 16; ++k) {
        Wgmma::run(sums, a + k * sm90::kOuterDescriptorStep, b + k * kStepX, step > 0 || k > 0);
      }
      sm90::wgmma_commit();
      if (step > 0) {
        sm90::wgmma_wait<1>();
        release_last();
      }
      ring.next();
    }
    sm90::wgmma_wait<0>();
    sm90::wgmma_pin(sums);
    release_last();

    const auto at = tile_position(tile, args.row_tiles, args.token_tiles);
    store_results<Tile>(args, base, warp, (at.row * kWideCluster + rank) * kWideRows,
                        at.col * Tile::kCols, scale, sums);
  }
  if (args.boxes) finish_boxes();
}

template <typename Tile>
__global__ void MY_OPS_SM90_KERNEL(Tile::kThreads, kWideCluster)
    fp4_wide_kernel(const __grid_constant__ WideArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int rank = static_cast<int>(sm90::cluster_rank());
  if (args.shares_tail) let_next_kernel_start();
  if (threadIdx.x == 0) {
    const WideRing<Tile> ring{base};
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      sm90::init_barrier(ring.full() + stage * 8, 1);
      sm90::init_barrier(ring.empty(stage), Tile::kConsumers / 32 * kWideCluster);
    }
    sm90::fence_barrier_init();
  }
  sm90::sync_cluster();

  // Until here nothing was touched that the kernel in front of this one makes.
  wait_for_previous_kernel();
  if (args.misfits == nullptr || !any_misfit(args.misfits, kMisfitBlocks)) {
    if (threadIdx.x >= Tile::kConsumers) {
      sm90::release_registers<40>();
      if (threadIdx.x < Tile::kConsumers + 32) fill_stages<Tile>(args, base, rank);
    } else {
      sm90::claim_registers<232>();
      multiply_stages<Tile>(args, base, rank);
    }
  }
  // The other block may still send here.
  sm90::sync_cluster();
#endif
}

}  // namespace my_ops
