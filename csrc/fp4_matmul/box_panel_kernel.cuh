// y = x * Wq^T + bias for up to 32 rows of x on Hopper, whose copy engine brings the weight. Device
// only, sm_90a, needs no torch.
//
// A block owns a panel of the weight, 16 kTiles rows and all of K, as in the panel kernel
// (panel_kernel.cuh), which has what the copy engine cannot read: weights whose rows of scales are
// no multiples of 16 bytes, an x of overlapping rows; and a short K (plan_box_panel). Here two
// warps, a team, share every kTeams-th step of K; one of them asks for a step of the panel in one
// box, its scales in another, x in a third. That leaves 22 instructions for eight codes of a lane
// where the panel kernel has 27, and as x lies in registers for half a step only, 16 warps have
// room where eight had. Sums of all warps are added at last, in their order.
//
// 13.2 us for the panel kernel's 15.0 at M = 16, 8192 x 8192, bfloat16 and NVFP4, of which copies
// alone take 11.2 and the arithmetic alone 11.9; 12.3 for 14.7 (4096 x 14336), 44.8 for 50 (28672 x
// 8192), 5.1 for 5.8 (4096 x 4096). At M = 8 11.9 for the stream kernel's 12.8. No faster: two
// steps of a team on their way (16.8), a team for every warp (14.3 to 16.2), copies by a warp of
// their own (15.5), teams in step with each other (14.6 to 16.9), scales of eight steps in one box
// (15.4), K divided between the blocks of a cluster (14.5 to 15.8, of four blocks twice the time),
// all codes of a step taken into registers so that the next ones come earlier (14.0). A thread that
// the compiler does not know to be one, lane 0, issues each copy in a loop: 14.3 us for 13.9.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "fp4_matmul/box_panel_team.cuh"
#include "fp4_matmul/panel_sums.cuh"

namespace my_ops {

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kThreads)
    fp4_box_panel_kernel(const __grid_constant__ BoxPanelArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Team = BoxPanelTeam<Tile>;
  extern __shared__ __align__(1024) uint8_t box_memory[];
  const uint32_t base = shared_address(box_memory);
  // By way of a shuffle: the compiler then knows that it is the same for all lanes.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  // The last panel overlaps the one before it where N is no multiple, which stores those rows.
  const int first_row = min(static_cast<int>(blockIdx.x) * Tile::kRows,
                            static_cast<int>(args.stream.out.N) - Tile::kRows);

  let_next_kernel_start();
  Team team(args, base, warp, first_row);
  if (warp == 0 && sm90::elect_one()) {
    sm90::prefetch_map(args.x);
    sm90::prefetch_map(args.codes);
    sm90::prefetch_map(args.scales);
#pragma unroll
    for (int step = 0; step < Tile::kPrefetched; ++step) {
      if (step < team.steps()) {
        sm90::prefetch_box(args.codes, first_row, step * (kStreamDepth / 2));
      }
    }
    Team::init_barriers(base);
  }
  team.clear_rest_of_x();
  __syncthreads();
  wait_for_previous_kernel();
  if (warp == Tile::kWarps - 2 && sm90::elect_one()) team.copy_first_steps();
  const FragmentScale scale = stream_scale<Tile>(args.stream, load_amax(args.stream));
  const uint32_t factor = pack_pair(__nv_bfloat16{}, scale.scale_factor, scale.scale_factor);

  typename Team::Sums sums = {};
#pragma unroll 1
  for (int step = team.first_step(); step < team.steps(); step += Tile::kTeams) {
    team.multiply(sums, step, factor);
  }
  team.make_up_barriers();

  float* const mine = reinterpret_cast<float*>(box_memory + Tile::sums_of(warp));
#pragma unroll
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      put_sum<Tile>(mine, tile, group, sums[tile][group]);
    }
  }
  if (!team.all_fit()) {
    add_missing<Tile>(args.stream, mine, first_row, team.first_k(), Tile::kTeams * kStreamDepth,
                      BlockRows::kStep / 32 / 2, 2 * 32);
  }
  __syncthreads();
  store_panel<Tile>(args.stream, box_memory, first_row, scale.sum_factor);
#endif
}

}  // namespace my_ops
