// y = x * Wq^T + bias for 9 to 16 rows of x, or few rows and a long K, on Hopper. Device only,
// sm_90a, needs no torch.
//
// A block owns a panel of the weight, 16 kTiles rows and all of K. Each of its warps has every
// kWarps-th step of K and keeps the sums of the whole panel in registers; x of a step comes into
// registers once (stream_x.cuh) and meets all tiles of the panel there. Nothing waits for another
// warp until the sums of all are added, in the order of the warps.
//
// 16.0 us at M = 16, 8192 x 8192, bfloat16 and NVFP4, of which copies alone take 11.6 and the
// arithmetic alone 12.9; wgmma, whose time adds to that of decoding, took 18.0 at best.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "fp4_matmul/missing_blocks.cuh"
#include "fp4_matmul/panel_copies.cuh"
#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// Elements 0, kPitch, 8 and kPitch + 8 from there on are this lane's of a sum, of all that the warp
// puts into shared memory.
template <typename Tile>
__device__ __forceinline__ float* sum_place(float* all, int tile, int group) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return all + (warp * Tile::kTokens + 8 * group + lane % 4 * 2) * Tile::kPitch + tile * 16 +
         lane / 4;
}

template <typename Tile, typename Sums>
__device__ __forceinline__ void put_sums(float* all, const Sums (&sums)[Tile::kTiles]) {
#pragma unroll
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      const float4 sum = StreamStep<Tile>::total(sums[tile][group]);
      float* const at = sum_place<Tile>(all, tile, group);
      at[0] = sum.x;
      at[Tile::kPitch] = sum.y;
      at[8] = sum.z;
      at[Tile::kPitch + 8] = sum.w;
    }
  }
}

// Adds up what the warps have of each element of y, and stores it.
template <typename Tile>
__device__ __forceinline__ void store_panel(const StreamArguments& args, const float* sums,
                                            int warps, int first_row, float factor) {
  constexpr int kWarpSums = Tile::kTokens * Tile::kPitch;
  const int elements = static_cast<int>(args.out.M) * Tile::kRows;
  for (int i = threadIdx.x; i < elements; i += warps * 32) {
    const int row = i % Tile::kRows, m = i / Tile::kRows;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += sums[w * kWarpSums + m * Tile::kPitch + row];
    const int64_t n = first_row + row;
    store_element(args.out, m, n, sum * factor + load_bias(args.out, n));
  }
}

// Adds what a warp's sums of a tile lack: element(group, i) is one of this lane's.
template <typename Tile, typename Element>
__device__ __forceinline__ void add_missing(const StreamArguments& args, int first_n, int warp,
                                            const Element& element) {
  static_assert(kStreamDepth == BlockRows::kStep);
  const int K = static_cast<int>(args.out.K), M = static_cast<int>(args.out.M);
  const BlockRows rows(args.codes, args.scales, first_n, K, warp * kStreamDepth, K,
                       Tile::kWarps * kStreamDepth);
  float sums[4 * Tile::kGroups];
#pragma unroll
  for (int i = 0; i < 4 * Tile::kGroups; ++i) sums[i] = element(i / 4, i % 4);
  add_missing_blocks<typename Tile::scalar_t, Tile::kGroups>(sums, rows, [&](int group, int k) {
    const int row = min(8 * group + static_cast<int>(threadIdx.x) % 32 / 4, M - 1);
    const auto* const from = static_cast<const uint16_t*>(args.x) + row * args.x_stride + k;
    return pair_order(k < K ? *reinterpret_cast<const uint4*>(from) : uint4{});
  });
#pragma unroll
  for (int i = 0; i < 4 * Tile::kGroups; ++i) element(i / 4, i % 4) = sums[i];
}

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kThreads) fp4_panel_kernel(const StreamArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Step = StreamStep<Tile>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32;
  const int M = static_cast<int>(args.out.M);
  // The last panel overlaps the one before it where N is no multiple; both write the same.
  const int first_row =
      min(static_cast<int>(blockIdx.x) * Tile::kRows, static_cast<int>(args.out.N) - Tile::kRows);
  const int steps = static_cast<int>((args.out.K + kStreamDepth - 1) / kStreamDepth);

  let_next_kernel_start();
  wait_for_previous_kernel();
  const float amax = args.amax == nullptr ? 0.0f : __ldg(args.amax);
  PanelCopies<Tile> copies(args, shared + warp * Tile::kWarpBytes, first_row, warp * kStreamDepth);
  if (warp < steps) copies.copy_x();
#pragma unroll
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
    if (warp < steps) copies.copy_tile(tile);
    copy_async_commit();
  }
  const FragmentScale scale = fragment_scale<typename Tile::scalar_t, Tile::kFormat>(
      args.amax == nullptr ? nullptr : &amax);

  typename Step::Sums sums[Tile::kTiles] = {};
  FittingScales<typename Tile::scalar_t> fitting;
#pragma unroll 1
  for (int step = warp; step < steps; step += Tile::kWarps) {
    const bool more = step + Tile::kWarps < steps;
    StreamX<Tile> x;
    copies.advance();
#pragma unroll
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      copy_async_wait<Tile::kTiles - 1>();
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
  __syncthreads();  // sums take the place of everything else
  auto* const all = reinterpret_cast<float*>(shared);
  put_sums<Tile>(all, sums);
  if (Step::kMx && !__all_sync(~0u, fitting.all_fit())) {
#pragma unroll 1
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      add_missing<Tile>(
          args, first_row + tile * kStreamRows, warp, [&](int group, int i) -> float& {
            return sum_place<Tile>(all, tile, group)[i % 2 * Tile::kPitch + i / 2 * 8];
          });
    }
  }
  __syncthreads();
  store_panel<Tile>(args, all, Tile::kWarps, first_row, scale.sum_factor);
#endif
}

}  // namespace my_ops
