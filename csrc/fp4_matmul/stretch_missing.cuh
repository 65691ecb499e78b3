// What the sums of the stretch kernel lack of blocks whose scales do not fit 16 bits
// (missing_blocks.cuh). Device only, sm_90a, needs no torch.
#pragma once

#include "fp4_matmul/missing_blocks.cuh"
#include "fp4_matmul/stretch_step.cuh"

namespace my_ops {

// Adds it to a warp's sums of a tile, at `sums` in shared memory: of the warp's part of K, and of
// the step from rest_k on where that is not negative. Blocks are looked for in 16 rows of the
// weight at a time, of which others are of no use here.
template <typename Tile>
__device__ __forceinline__ void add_missing_of_tile(const StretchArguments& args, uint32_t sums,
                                                    int first_row, int first_k, int rest_k) {
  const int K = static_cast<int>(args.out.K), M = static_cast<int>(args.out.M);
  const int from_row = min(first_row, static_cast<int>(args.out.N) - kStreamRows);
  const int end_k = rest_k < 0 ? first_k + kStretchPart : rest_k + kStretchStep;
  const BlockRows rows(args.codes, args.scales, from_row, K, first_k, end_k,
                       rest_k < 0 ? K : rest_k - first_k);
  const int lane = opaque(threadIdx.x % 32);
  const auto row_of = [&](int i) { return from_row - first_row + lane / 4 + i % 4 / 2 * 8; };
  const auto is_mine = [&](int i) { return row_of(i) >= 0 && row_of(i) < kStretchTileRows; };
  const auto place = [&](int i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    return sums + (token * kStretchTileRows + row_of(i)) * 4;
  };
  float all[4 * Tile::kGroups];
#pragma unroll
  for (int i = 0; i < 4 * Tile::kGroups; ++i) {
    all[i] = 0.0f;
    if (is_mine(i)) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(all[i]) : "r"(place(i)));
  }
  add_missing_blocks<typename Tile::scalar_t, Tile::kGroups>(all, rows, [&](int group, int k) {
    const int row = min(8 * group + static_cast<int>(threadIdx.x) % 32 / 4, M - 1);
    const auto* const from = static_cast<const uint16_t*>(args.x) + row * args.x_stride + k;
    return pair_order(k < K ? *reinterpret_cast<const uint4*>(from) : uint4{});
  });
#pragma unroll
  for (int i = 0; i < 4 * Tile::kGroups; ++i) {
    if (is_mine(i)) store_shared4(place(i), all[i]);
  }
}

}  // namespace my_ops
