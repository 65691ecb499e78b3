// y = x * Wq^T + bias for 9 to 16 rows of x, or few rows and a long K, on Hopper. Device only,
// sm_90a, needs no torch.
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
#include "fp4_matmul/missing_blocks.cuh"
#include "fp4_matmul/panel_copies.cuh"
#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// Elements 0, kPitch, 8 and kPitch + 8 from there on are this lane's of a sum, in what its warp has
// of shared memory for sums.
template <typename Tile>
__device__ __forceinline__ float* sum_place(float* mine, int tile, int group) {
  const int lane = threadIdx.x % 32;
  return mine + (8 * group + lane % 4 * 2) * Tile::kPitch + tile * 16 + lane / 4;
}

template <typename Tile, typename Sums>
__device__ __forceinline__ void put_sums(float* mine, const Sums (&sums)[Tile::kTiles]) {
#pragma unroll
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      const float4 sum = StreamStep<Tile>::total(sums[tile][group]);
      float* const at = sum_place<Tile>(mine, tile, group);
      at[0] = sum.x;
      at[Tile::kPitch] = sum.y;
      at[8] = sum.z;
      at[Tile::kPitch + 8] = sum.w;
    }
  }
}

// Adds up what the warps have of each element of y, and stores it. A thread has the same row of the
// weight for every kAtOnce-th row of x.
template <typename Tile>
__device__ __forceinline__ void store_panel(const StreamArguments& args, const float* sums,
                                            int first_row, float factor) {
  constexpr int kRoom = Tile::kThreads / Tile::kRows;
  constexpr int kAtOnce = kRoom < Tile::kTokens ? kRoom : Tile::kTokens;
  constexpr int kEach = Tile::kTokens / kAtOnce;
  const int row = threadIdx.x % Tile::kRows, first_m = threadIdx.x / Tile::kRows;
  if (first_m >= kAtOnce) return;
  const float* const mine = sums + first_m * Tile::kPitch + row;
  float sum[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      sum[i] += mine[w * (Tile::kWarpBytes / 4) + i * kAtOnce * Tile::kPitch];
    }
  }
  const int64_t n = first_row + row;
  if (n < int64_t{blockIdx.x} * Tile::kRows) return;
  const float bias = load_bias(args.out, n);
  const int M = static_cast<int>(args.out.M);
  const auto store = [&](auto* to, auto narrow) {
    to += first_m * args.out.row_stride + n * args.out.col_stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (first_m + i * kAtOnce < M) *to = narrow(sum[i] * factor + bias);
      to += kAtOnce * args.out.row_stride;
    }
  };
  if (args.out.type == DenseType::float32) {
    store(static_cast<float*>(args.out.data), [](float v) { return v; });
  } else if (args.out.type == DenseType::float16) {
    store(static_cast<__half*>(args.out.data), [](float v) { return __float2half_rn(v); });
  } else {
    store(static_cast<__nv_bfloat16*>(args.out.data),
          [](float v) { return __float2bfloat16_rn(v); });
  }
}

// Not with __ldg, which the compiler puts behind copies of the weight: it comes 1 us later then.
__device__ __forceinline__ float load_amax(const StreamArguments& args) {
  float amax = 0.0f;
  if (args.amax != nullptr) {
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(amax) : "l"(args.amax) : "memory");
  }
  return amax;
}

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

// Adds what a warp's sums lack.
template <typename Tile>
__device__ __forceinline__ void add_missing(const StreamArguments& args, float* mine, int first_row,
                                            int warp, int warps) {
  static_assert(kStreamDepth == BlockRows::kStep);
  const int K = static_cast<int>(args.out.K), M = static_cast<int>(args.out.M);
#pragma unroll 1
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
    const BlockRows rows(args.codes, args.scales, first_row + tile * kStreamRows, K,
                         warp * kStreamDepth, K, warps * kStreamDepth);
    const auto element = [&](int i) -> float& {
      return sum_place<Tile>(mine, tile, i / 4)[i % 2 * Tile::kPitch + i % 4 / 2 * 8];
    };
    float sums[4 * Tile::kGroups];
#pragma unroll
    for (int i = 0; i < 4 * Tile::kGroups; ++i) sums[i] = element(i);
    add_missing_blocks<typename Tile::scalar_t, Tile::kGroups>(sums, rows, [&](int group, int k) {
      const int row = min(8 * group + static_cast<int>(threadIdx.x) % 32 / 4, M - 1);
      const auto* const from = static_cast<const uint16_t*>(args.x) + row * args.x_stride + k;
      return pair_order(k < K ? *reinterpret_cast<const uint4*>(from) : uint4{});
    });
#pragma unroll
    for (int i = 0; i < 4 * Tile::kGroups; ++i) element(i) = sums[i];
  }
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
  auto* const all = reinterpret_cast<float*>(shared);
  float* const mine = all + warp * (Tile::kWarpBytes / 4);
  put_sums<Tile>(mine, sums);
  if (Step::kMx && !__all_sync(~0u, fitting.all_fit())) {
    add_missing<Tile>(args, mine, first_row, warp, Tile::kWarps);
  }
  __syncthreads();
  store_panel<Tile>(args, all, first_row, scale.sum_factor);
#endif
}

}  // namespace my_ops
