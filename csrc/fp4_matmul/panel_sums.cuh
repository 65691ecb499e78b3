// The end of the kernels that take panels: what the warps have of a panel's sums comes together in
// shared memory and goes to y. Device only, needs no torch.
#pragma once

#include "fp4_matmul/missing_blocks.cuh"
#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// Elements 0, kPitch, 8 and kPitch + 8 from there on are this lane's of a sum, in what its warp has
// of shared memory for sums.
template <typename Tile>
__device__ __forceinline__ float* sum_place(float* mine, int tile, int group) {
  const int lane = threadIdx.x % 32;
  return mine + (8 * group + lane % 4 * 2) * Tile::kPitch + tile * 16 + lane / 4;
}

template <typename Tile>
__device__ __forceinline__ void put_sum(float* mine, int tile, int group, const float (&sum)[4]) {
  float* const at = sum_place<Tile>(mine, tile, group);
  at[0] = sum[0];
  at[Tile::kPitch] = sum[1];
  at[8] = sum[2];
  at[Tile::kPitch + 8] = sum[3];
}

// Those of all tiles, as StreamStep has them.
template <typename Tile, typename Sums>
__device__ __forceinline__ void put_sums(float* mine, const Sums (&sums)[Tile::kTiles]) {
#pragma unroll
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      const float4 sum = StreamStep<Tile>::total(sums[tile][group]);
      put_sum<Tile>(mine, tile, group, {sum.x, sum.y, sum.z, sum.w});
    }
  }
}

// Adds up what the warps have of each element of y, and stores it. A thread has the same row of the
// weight for every kAtOnce-th row of x.
template <typename Tile>
__device__ __forceinline__ void store_panel(const StreamArguments& args, const uint8_t* shared,
                                            int first_row, float factor) {
  constexpr int kRoom = Tile::kThreads / Tile::kRows;
  constexpr int kAtOnce = kRoom < Tile::kTokens ? kRoom : Tile::kTokens;
  constexpr int kEach = Tile::kTokens / kAtOnce;
  static_assert(kEach * kAtOnce == Tile::kTokens, "every row of x");
  const int row = threadIdx.x % Tile::kRows, first_m = threadIdx.x / Tile::kRows;
  if (first_m >= kAtOnce) return;
  float sum[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      const auto* const of_warp = reinterpret_cast<const float*>(shared + Tile::sums_of(w));
      sum[i] += of_warp[(first_m + i * kAtOnce) * Tile::kPitch + row];
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

// Adds what a warp's sums lack: of its steps from first_k on, stride_k apart, with `blocks` of 32
// in each, block_stride apart.
template <typename Tile>
__device__ __forceinline__ void add_missing(const StreamArguments& args, float* mine, int first_row,
                                            int first_k, int stride_k, int blocks,
                                            int block_stride) {
  const int K = static_cast<int>(args.out.K), M = static_cast<int>(args.out.M);
#pragma unroll 1
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
    const BlockRows rows(args.codes, args.scales, first_row + tile * kStreamRows, K, first_k, K,
                         stride_k, blocks, block_stride);
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

// Of a warp that has every warps-th step.
template <typename Tile>
__device__ __forceinline__ void add_missing(const StreamArguments& args, float* mine, int first_row,
                                            int warp, int warps) {
  static_assert(kStreamDepth == BlockRows::kStep);
  add_missing<Tile>(args, mine, first_row, warp * kStreamDepth, warps * kStreamDepth,
                    kStreamDepth / 32, 32);
}

}  // namespace my_ops
