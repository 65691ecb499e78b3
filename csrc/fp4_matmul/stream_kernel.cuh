// y = x * Wq^T + bias for few rows of x: every byte of the weight is read once, at the speed of
// memory. Device only, needs no torch.
//
// The 16 warps of a block share the 16 rows of a tile: a warp has 512 of K for all tiles of its
// block, and keeps that part of x in registers. The weight comes through slots of the warp's own
// (stream_ring.cuh), a lane turns codes into 16-bit pairs times their block scale (stream_step.cuh)
// and these are mma's operand A, x is B. Nothing waits for another warp until the sums of four
// tiles are added, in the order of K. A longer K takes another pass over these four tiles.
//
// 13.7, 14.4 and 15.9 us at M = 1, 4 and 8, 8192 x 8192, for 9.4 of reading alone: decoding takes
// the time of reading, and x is read by every SM, 17 MB at M = 8. No faster: codes and scales by a
// table in shared memory (15.2 for 14.2), for one row scales times sums, not codes (14.5), K
// divided between two blocks of a cluster (2 us more), steps of 128 codes, two to four ahead (14.1
// to 14.4).
#pragma once

#include "common/overlap.cuh"
#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// Adds up what the warps have of each element of y, and stores it.
__device__ __forceinline__ void store_stream_sums(const StreamArguments& args, const float* sums,
                                                  int first_tile, int tiles, float factor) {
  const int warps = blockDim.x / 32;
  const int M = static_cast<int>(args.out.M);
  for (int i = threadIdx.x; i < tiles * M * kStreamRows; i += blockDim.x) {
    const int tile = i / (M * kStreamRows);
    const int m = i / kStreamRows % M, row = i % kStreamRows;
    // mma's lane and element of this sum.
    const int lane = row % 8 * 4 + m / 2, element = row / 8 * 2 + m % 2;
    const float* const mine = sums + tile * warps * 128 + lane * 4 + element;
    float sum = 0.0f;
#pragma unroll 16
    for (int w = 0; w < warps; ++w) sum += mine[w * 128];
    const int64_t n = stream_row(args, first_tile + tile * static_cast<int>(gridDim.x)) + row;
    store_element(args.out, m, n, sum * factor + load_bias(args.out, n));
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kMaxWarps * 32, 1)
    fp4_stream_kernel(const StreamArguments args) {
  using Step = StreamStep<Tile>;
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kSlotBytes = kStreamSlots * (Tile::kCodeSlotBytes + Tile::kScaleSlotBytes);
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int M = static_cast<int>(args.out.M);
  const int K = static_cast<int>(args.out.K);
  const int tiles = static_cast<int>((args.out.N + kStreamRows - 1) / kStreamRows);
  const int first_k = warp * Tile::kSteps * kStreamDepth;
  const int pass_k = warps * Tile::kSteps * kStreamDepth;

  let_next_kernel_start();
  wait_for_previous_kernel();
  typename Step::X x[Tile::kSteps];
  // Rows that x has not are zeros.
  const auto load_x = [&](int pass) {
    const auto* const row =
        static_cast<const uint16_t*>(args.x) + min(lane / 4, M - 1) * args.x_stride;
#pragma unroll
    for (int s = 0; s < Tile::kSteps; ++s) {
      const int k = first_k + pass * pass_k + s * kStreamDepth;
      x[s].load(row, k, lane / 4 < M ? K - k : 0);
    }
  };
  load_x(0);
  const float amax = args.amax == nullptr ? 0.0f : __ldg(args.amax);
  StreamRing<Tile> ring(args, shared + warp * kSlotBytes, first_k);
  StreamCursor next(blockIdx.x);
  const auto load_next = [&](int step) {
    ring.load(next, step, tiles, pass_k);
    if (step == Tile::kSteps - 1) next.advance(tiles, args.passes);
  };
#pragma unroll
  for (int slot = 0; slot < kStreamSlots; ++slot) load_next(slot % Tile::kSteps);
  const FragmentScale scale = fragment_scale<typename Tile::scalar_t, Tile::kFormat>(
      args.amax == nullptr ? nullptr : &amax);

  float4* const sums = reinterpret_cast<float4*>(shared + warps * kSlotBytes);
  for (int group = blockIdx.x; group < tiles; group += kStreamGroup * gridDim.x) {
    const int group_tiles =
        min(kStreamGroup, (tiles - 1 - group) / static_cast<int>(gridDim.x) + 1);
    for (int pass = 0; pass < args.passes; ++pass) {
      if (args.passes > 1 && (pass > 0 || group > static_cast<int>(blockIdx.x))) load_x(pass);
      if (args.passes > 1 || group == static_cast<int>(blockIdx.x)) {
#pragma unroll
        for (int s = 0; s < Tile::kSteps; ++s) x[s].order();
      }
#pragma unroll 1
      for (int tile = 0; tile < group_tiles; ++tile) {
        typename Step::Sums part = {};
        typename Step::Scales scales[Tile::kSteps];
        int shift = 0;
        if constexpr (Tile::kRagged) {
          const int first = stream_row(args, group + tile * static_cast<int>(gridDim.x));
          shift = scale_shift((first + lane / 4) * stream_scale_bytes<Tile>(args));
        }
#pragma unroll
        for (int s = 0; s < Tile::kSteps; ++s) {
          copy_async_wait<kStreamSlots - 1>();
          __syncwarp();
          typename Step::Codes codes;
          codes.load(ring.codes(s));
          if (s == 0) {
#pragma unroll
            for (int i = 0; i < Tile::kSteps; ++i) scales[i].load(ring.scales(i), shift);
          }
          __syncwarp();
          load_next(s);
          Step::multiply(part, codes, scales[s], x[s], scale.scale_factor);
        }
        float4& mine = sums[(tile * warps + warp) * 32 + lane];
        float4 total = {part[0][0] + part[1][0], part[0][1] + part[1][1], part[0][2] + part[1][2],
                        part[0][3] + part[1][3]};
        if (pass > 0) {
          total = {mine.x + total.x, mine.y + total.y, mine.z + total.z, mine.w + total.w};
        }
        mine = total;
      }
    }
    __syncthreads();
    store_stream_sums(args, reinterpret_cast<const float*>(sums), group, group_tiles,
                      scale.sum_factor);
    __syncthreads();
  }
}

}  // namespace my_ops
