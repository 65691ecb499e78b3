// C = A B on the CUDA cores, in the operands' own precision. Device only, needs no torch.
//
// A block owns a kRows x kCols tile of C, or one slice of K of such a tile. It walks K in steps of
// kDepth: cp.async brings the next tiles of A and B into a ring of kStages shared buffers while
// each thread multiplies a kThreadRows x kThreadCols patch out of registers, which are themselves
// double buffered so that the shared loads of step k + 1 hide behind the FMAs of step k.
// Shared tiles are K-outer ([k][row]), so an operand whose memory runs along K is transposed on its
// way in. So all four layouts of the two operands share one kernel: only the copies know them.
//
// Tiles that would leave the last wave of blocks half empty are cut along K. Their slices are added
// in order: by the blocks of a cluster through its distributed shared memory, or, out of a
// workspace, by sum_slices_kernel.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/vec.cuh"
#include "matmul/simt_product.cuh"
#include "matmul/simt_tile.cuh"

namespace my_ops {
namespace simt {

template <class Tile, Copy kCopyA, Copy kCopyB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSM)
    matmul_simt_kernel(const __grid_constant__ Product<typename Tile::scalar_t> product) {
  using scalar_t = typename Tile::scalar_t;
  using Strip = Vec<scalar_t, Tile::kVector>;
  constexpr int kDepth = Tile::kDepth, kStages = Tile::kStages, kVector = Tile::kVector;
  constexpr int kThreadRows = Tile::kThreadRows, kThreadCols = Tile::kThreadCols;
  extern __shared__ __align__(16) char shared_memory[];
  const scalar_t* const shared = reinterpret_cast<const scalar_t*>(shared_memory);
  const uint32_t shared_address = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory));

  let_next_kernel_start();
  if (product.only_if != nullptr) {
    wait_for_previous_kernel();
    if (*product.only_if == 0) return;
  }
  const BlockWork<Tile> work(product);

  // Load: all stages but one.
  using Loader = TileLoader<Tile, kCopyA, kCopyB>;
  Loader loader({product.A, work.first_row, product.M, work.first_k},
                {product.B, work.first_col, product.N, work.first_k}, work.tiles);
  loader.load_first(shared_address, work.first_depth);
#pragma unroll
  for (int stage = 1; stage < kStages - 1; ++stage) {
#pragma unroll
    for (int group = 0; group < Tile::kCopyGroups; ++group) {
      loader.load_group(group, shared_address + stage * Tile::kStageBytes);
    }
    loader.next(kDepth);
  }

  // Where this thread's patch lies. Lanes are numbered in a Z so that the 16-byte shared loads of
  // a quarter warp fall on few different addresses.
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kWarpsAlongCols = Tile::kCols / Tile::kWarpCols;
  const int patch_row =
      warp / kWarpsAlongCols * Tile::kWarpRows + (lane / 16 * 2 + lane % 2) * kVector;
  const int patch_col = warp % kWarpsAlongCols * Tile::kWarpCols + lane % 16 / 2 * kVector;

  scalar_t sum[kThreadRows][kThreadCols] = {};
  alignas(16) scalar_t a[2][kThreadRows], b[2][kThreadCols];
  auto load_fragments = [&](int stage, int k, int buffer) {
    const scalar_t* const tile = shared + stage * Tile::kStageElements;
#pragma unroll
    for (int i = 0; i < kThreadRows; i += kVector) {
      *reinterpret_cast<Strip*>(&a[buffer][i]) =
          *reinterpret_cast<const Strip*>(tile + k * Tile::kPitchA + patch_row + i * 4);
    }
#pragma unroll
    for (int j = 0; j < kThreadCols; j += kVector) {
      *reinterpret_cast<Strip*>(&b[buffer][j]) = *reinterpret_cast<const Strip*>(
          tile + Tile::kOffsetB + k * Tile::kPitchB + patch_col + j * 8);
    }
  };

  wait_for_copies<kStages - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);
  int read_stage = 0, write_stage = kStages - 1;

  // Compute, and load the tile that is kStages - 1 ahead
#pragma unroll 1
  for (int tile = 0; tile < work.tiles; ++tile) {
    const uint32_t address = shared_address + write_stage * Tile::kStageBytes;
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      if (k == kDepth - 1) {
        loader.next(kDepth);
        wait_for_copies<kStages - 2>();
        __syncthreads();
        write_stage = read_stage;
        read_stage = read_stage + 1 == kStages ? 0 : read_stage + 1;
      }
      load_fragments(read_stage, (k + 1) % kDepth, (k + 1) % 2);
      // The copies of a tile are issued in a few groups: one burst would stall the shared loads,
      // and ptxas puts three dummy loads before every group.
      constexpr int kGroupSteps = kDepth / Tile::kCopyGroups;
      if (k % kGroupSteps == 0) loader.load_group(k / kGroupSteps, address);
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
        for (int j = 0; j < kThreadCols; ++j) sum[i][j] += a[k % 2][i] * b[k % 2][j];
      }
    }
  }
  wait_for_copies<0>();
  if (product.clustered) {
    __syncthreads();  // the slice takes the place of the stages
  }

  // Store. If the sums themselves were stored, ptxas would keep them in aligned groups of four
  // registers throughout, which gives a sixteenth of the FMAs above bank conflicts: 3 % of the
  // time. A factor that it does not know to be one prevents that.
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const int row = patch_row + i / kVector * (4 * kVector) + i % kVector;
#pragma unroll
    for (int j = 0; j < kThreadCols; j += kVector) {
      const int col = patch_col + j * 8;
      Strip strip;
#pragma unroll
      for (int e = 0; e < kVector; ++e) strip.elements[e] = sum[i][j + e] * product.one;
      work.store(product, shared_memory, row, col, strip);
    }
  }
  if (product.clustered) work.sum_in_cluster(product, shared_memory);
}

}  // namespace simt
}  // namespace my_ops
