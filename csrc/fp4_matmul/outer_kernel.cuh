// y = x * b for few rows of x where b's blocks run along the dimension that is not contracted, as
// the weight's do in the gradient of fp4_linear: every byte of b is read once. Device only, needs
// no torch.
//
// A block owns 128 columns of b and some rows of x. Its warps take turns in b's rows, 32 in a step,
// which come through slots of the warp's own. b is operand A of the tensor cores, decoded in
// registers (outer_step.cuh), x is B, straight from memory. At last the sums of all warps are added
// in shared memory, then those of the blocks of a cluster, which share the rows of b.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "fp4_matmul/outer_step.cuh"

namespace my_ops {

template <typename Tile>
__device__ __forceinline__ void fetch_outer_step(const OuterArguments& args, uint8_t* slot,
                                                 int64_t first_col, int first_row, int end_row) {
  constexpr int kBlock = fp4_block_size(Tile::kFormat);
  const int lane = threadIdx.x % 32;
  if (first_row < end_row) {
#pragma unroll
    for (int i = 0; i < kOuterDepth / 8; ++i) {
      const int row = i * 8 + lane / 4;
      const uint8_t* const from =
          args.codes + (first_row + row) * (args.out.N / 2) + first_col / 2 + lane % 4 * 16;
      copy_async<16>(slot + outer_chunk(row, lane % 4), from, first_row + row < end_row ? 16 : 0);
    }
    copy_async<Tile::kScaleBytes>(
        slot + Tile::kCodeBytes + lane * Tile::kScaleBytes,
        args.scales + (first_row + lane) * (args.out.N / kBlock) + first_col / kBlock,
        first_row + lane < end_row ? Tile::kScaleBytes : 0);
  }
  copy_async_commit();
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kWarps * 32, 1)
    fp4_outer_kernel(const OuterArguments args, int splits) {
  using Step = OuterStep<Tile>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = blockIdx.x % splits;
  const int64_t first_col = int64_t{blockIdx.x / splits} * kOuterCols;
  const int64_t first_token = int64_t{blockIdx.y} * Tile::kTokens;
  // Whole steps for every block.
  const int64_t steps = (args.out.K + kOuterDepth - 1) / kOuterDepth;
  const int first_row = static_cast<int>(steps * rank / splits) * kOuterDepth;
  const int end_row = static_cast<int>(min(steps * (rank + 1) / splits * kOuterDepth, args.out.K));

  let_next_kernel_start();
  wait_for_previous_kernel();
  uint8_t* const slots = shared + warp * Tile::kSlots * Tile::kSlotBytes;
  constexpr int kApart = Tile::kWarps * kOuterDepth;
  const int mine = first_row + warp * kOuterDepth;
#pragma unroll
  for (int i = 0; i < Tile::kSlots - 1; ++i) {
    fetch_outer_step<Tile>(args, slots + i * Tile::kSlotBytes, first_col, mine + i * kApart,
                           end_row);
  }
  const FragmentScale scale = fragment_scale<typename Tile::scalar_t, Tile::kFormat>(args.amax);
  typename Step::Sums sums = {};
  typename Step::X x;
  x.load(args, first_token, mine, end_row);
  int slot = 0;
#pragma unroll 1
  for (int row = mine; row < end_row; row += kApart) {
    typename Step::X next_x;
    next_x.load(args, first_token, row + kApart, end_row);
    copy_async_wait<Tile::kSlots - 2>();
    __syncwarp();
    const int free = slot == 0 ? Tile::kSlots - 1 : slot - 1;
    fetch_outer_step<Tile>(args, slots + free * Tile::kSlotBytes, first_col,
                           row + (Tile::kSlots - 1) * kApart, end_row);
    Step::multiply(sums, slots + slot * Tile::kSlotBytes, x, scale.scale_factor);
    slot = slot == Tile::kSlots - 1 ? 0 : slot + 1;
    x = next_x;
  }

  // Add the warps' sums: [tokens, columns] of each.
  copy_async_wait<0>();
  __syncthreads();
  float* const all = reinterpret_cast<float*>(shared);
  constexpr int kSums = Tile::kSumBytes / 4;
#pragma unroll
  for (int s = 0; s < Step::kStrips; ++s) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = s * 8 + lane % 4 * 2 + e % 2;
      float* const to = all + warp * kSums + token * Tile::kSumPitch + lane / 4 * 16 + e / 2 * 8;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        *reinterpret_cast<float4*>(to + j) =
            make_float4(sums[j][s][e], sums[j + 1][s][e], sums[j + 2][s][e], sums[j + 3][s][e]);
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < Tile::kTokens * kOuterCols; i += Tile::kWarps * 32) {
    float* const element = all + i / kOuterCols * Tile::kSumPitch + i % kOuterCols;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) sum += element[w * kSums];
    *element = sum;
  }
  splits > 1 ? sm90::sync_cluster() : __syncthreads();

  for (int i = threadIdx.x + rank * Tile::kWarps * 32; i < Tile::kTokens * kOuterCols;
       i += splits * Tile::kWarps * 32) {
    const float* const element = all + i / kOuterCols * Tile::kSumPitch + i % kOuterCols;
    float sum = 0.0f;
    if (splits == 1) {
      sum = *element;
    } else {
      for (int r = 0; r < splits; ++r) sum += sm90::load_at_rank(element, r);
    }
    const int64_t m = first_token + i / kOuterCols, n = first_col + i % kOuterCols;
    if (m < args.out.M) {
      store_element(args.out, m, n, sum * scale.sum_factor + load_bias(args.out, n));
    }
  }
  if (splits > 1) sm90::sync_cluster();
}

}  // namespace my_ops
