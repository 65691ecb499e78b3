// y = x * Wq^T + bias on Hopper for 9 to 16 rows of x, or for fewer and K > 8192, where
// box_panel_kernel.cuh does not do it. Device only, sm_90a, needs no torch.
//
// A block owns a panel of the weight, 16 kTiles rows and all of K. Each of its warps has every
// kWarps-th step of K and keeps the sums of the whole panel in registers; x of a step comes into
// registers once (stream_x.cuh) and meets all tiles of the panel there. Nothing waits for another
// warp until the sums of all are added, in the order of the warps.
//
// 15.3 us at M = 16, 8192 x 8192, bfloat16 and NVFP4, of which copies alone take 11.6 and the
// arithmetic alone 12.9; wgmma, whose time adds to that of decoding, took 18.0 at best.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "fp4_matmul/panel_copies.cuh"
#include "fp4_matmul/panel_sums.cuh"
#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// As in the stream kernel: 0.1 to 0.3 us less.
template <typename Tile>
__device__ __forceinline__ void prefetch_panel(const StreamArguments& args, int first_row) {
  constexpr int kPrefetched = Tile::kTiles / 2 * kStreamRows;
  constexpr int64_t kBytes = 1024;  // of a row: all warps' first steps, or half of them
  const int64_t row_codes = args.out.K / 2;
  const int row = threadIdx.x;
  if (row >= kPrefetched) return;
  prefetch_to_l2(args.codes + (first_row + row) * row_codes,
                 static_cast<int>(min(kBytes, row_codes)));
}

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kThreads) fp4_panel_kernel(const StreamArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Step = StreamStep<Tile>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32;
  const int M = static_cast<int>(args.out.M);
  // The last panel overlaps the one before it where N is no multiple, which stores those rows.
  const int first_row =
      min(static_cast<int>(blockIdx.x) * Tile::kRows, static_cast<int>(args.out.N) - Tile::kRows);
  const int steps = static_cast<int>((args.out.K + kStreamDepth - 1) / kStreamDepth);

  let_next_kernel_start();
  PanelCopies<Tile> copies(args, shared + warp * Tile::kWarpBytes, first_row, warp * kStreamDepth);
  prefetch_panel<Tile>(args, first_row);
  wait_for_previous_kernel();
  const float amax = load_amax(args);
#pragma unroll
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
    if (warp < steps) copies.copy_tile(tile);
    if (tile == Tile::kXBehind && warp < steps) copies.copy_x();
    copy_async_commit();
  }
  const FragmentScale scale = stream_scale<Tile>(args, amax);

  typename Step::Sums sums[Tile::kTiles] = {};
  FittingScales<typename Tile::scalar_t> fitting;
#pragma unroll 1
  for (int step = warp; step < steps; step += Tile::kWarps) {
    const bool more = step + Tile::kWarps < steps;
    StreamX<Tile> x;
    copies.advance();
#pragma unroll
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      if (Tile::kXBehind > 0 && tile == 0 && step == warp) {
        copy_async_wait<Tile::kTiles - 1 - Tile::kXBehind>();
      } else {
        copy_async_wait<Tile::kTiles - 1>();
      }
      __syncwarp();
      if (tile == 0) x.take(copies.x(), M);
      typename Step::Codes codes;
      typename Step::Scales scales;
      codes.load(copies.codes(tile));
      scales.load(copies.scales(tile), 0);
      __syncwarp();
      if (tile == 0 && more) copies.copy_x();
      if (more) copies.copy_tile(tile);
      copy_async_commit();
      Step::multiply_once(sums[tile], codes, scales, x, scale.scale_factor,
                          [&](uint32_t codes, uint32_t byte) { return fitting.pair(codes, byte); });
    }
  }

  copy_async_wait<0>();
  __syncwarp();  // sums take the place of what the warp has copied
  float* const mine = reinterpret_cast<float*>(shared + Tile::sums_of(warp));
  put_sums<Tile>(mine, sums);
  if (Step::kMx && !__all_sync(~0u, fitting.all_fit())) {
    add_missing<Tile>(args, mine, first_row, warp, Tile::kWarps);
  }
  __syncthreads();
  store_panel<Tile>(args, shared, first_row, scale.sum_factor);
#endif
}

}  // namespace my_ops
