// C = A B in float64 on the tensor cores. Device only, needs no torch.
//
// A block owns a kRows x kCols tile of C, or one slice of K of such a tile, and each of its warps a
// kWarpRows x kWarpCols part. It walks K in steps of kDepth: cp.async brings the next tiles of A
// and B into a ring of kStages shared buffers while the warps multiply out of registers, which are
// themselves double buffered. Tiles, slices and their sum are those of simt_gemm.cuh.
//
// mma in float64 is made of fused multiply-adds in float64: nothing is rounded to less.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/vec.cuh"
#include "matmul/dmma_copy.cuh"
#include "matmul/simt_product.cuh"

namespace my_ops {
namespace dmma {

template <int kRows_, int kCols_, int kWarpRows_, int kWarpCols_, int kStages_, int kBlocksPerSM_>
struct Tile {
  using scalar_t = double;
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;
  static constexpr int kStages = kStages_, kBlocksPerSM = kBlocksPerSM_;
  static constexpr int kDepth = dmma::kDepth;
  static constexpr int kVector = 2;  // C is stored in strips of 16 bytes
  static constexpr int kThreads = 32 * (kRows / kWarpRows) * (kCols / kWarpCols);
  using SharedA = SharedTile<kRows, false>;
  using SharedB = SharedTile<kCols, true>;
  static constexpr int kStageBytes = SharedA::kBytes + SharedB::kBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kWarpRows % 16 == 0 && kWarpCols % 8 == 0, "whole fragments");
  static_assert(kSharedBytes <= 99 * 1024, "what a block may have on GPUs of 8.6, 8.9 and 12.0");
};

// c += a b of 16 x 8 by 8 x 8: c [row half][column pair], a [k half][row half], b [k half].
__device__ __forceinline__ void mma(double (&c)[2][2], const double (&a)[2][2],
                                    const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c[0][0]), "+d"(c[0][1]), "+d"(c[1][0]), "+d"(c[1][1])
      : "d"(a[0][0]), "d"(a[0][1]), "d"(a[1][0]), "d"(a[1][1]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(c[half][0]), "+d"(c[half][1])
          : "d"(a[k][half]), "d"(b[k]));
    }
  }
#endif
}

__device__ __forceinline__ void load_shared_pair(double (&pair)[2], uint32_t address) {
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
               : "=d"(pair[0]), "=d"(pair[1])
               : "r"(address)
               : "memory");
}

template <class Tile, bool kVectorsA, bool kVectorsB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSM)
    matmul_dmma_kernel(const Operand A, const Operand B,
                       const __grid_constant__ simt::Output<double> output) {
  using SharedA = typename Tile::SharedA;
  using SharedB = typename Tile::SharedB;
  constexpr int kStages = Tile::kStages;
  extern __shared__ __align__(16) char shared_memory[];
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory));
  let_next_kernel_start();

  // Load: all stages but one.
  const simt::BlockWork<Tile> work(output);
  Copier<SharedA, Tile::kThreads, kVectorsA> copy_a(A, work.first_row, output.M, work.first_k);
  Copier<SharedB, Tile::kThreads, kVectorsB> copy_b(B, work.first_col, output.N, work.first_k);
  int left = work.tiles;
  auto copy_next = [&](int stage, int depth) {
    if (left > 0) {
      copy_a.copy(shared + stage * Tile::kStageBytes, depth);
      copy_b.copy(shared + stage * Tile::kStageBytes + SharedA::kBytes, depth);
      --left;
    }
    simt::commit_copies();
  };
  copy_next(0, work.first_depth);
#pragma unroll 1
  for (int stage = 1; stage < kStages - 1; ++stage) copy_next(stage, kDepth);

  // This thread's place in the block's tile, and in shared memory for both halves of kDepth.
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, member = lane % 4;
  constexpr int kWarpsAlongCols = Tile::kCols / Tile::kWarpCols;
  const int warp_row = warp / kWarpsAlongCols * Tile::kWarpRows;
  const int warp_col = warp % kWarpsAlongCols * Tile::kWarpCols;
  const int offset_a = SharedA::offset(warp_row + 2 * group, 2 * member);
  const int offset_b[2] = {SharedA::kBytes + SharedB::offset(warp_col + group, 2 * member),
                           SharedA::kBytes + SharedB::offset(warp_col + group, 2 * member + 8)};

  constexpr int kFragmentsA = Tile::kWarpRows / 16, kFragmentsB = Tile::kWarpCols / 8;
  double sum[kFragmentsA][kFragmentsB][2][2] = {};
  double a[2][kFragmentsA][2][2], b[2][kFragmentsB][2];
  auto load_fragments = [&](int stage, int half, int buffer) {
    const uint32_t tile = shared + stage * Tile::kStageBytes;
#pragma unroll
    for (int i = 0; i < kFragmentsA; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        load_shared_pair(a[buffer][i][k],
                         tile + offset_a + (half * 8 + k) * SharedA::kPitchBytes + i * 128);
      }
    }
#pragma unroll
    for (int j = 0; j < kFragmentsB; ++j) {
      load_shared_pair(b[buffer][j], tile + offset_b[half] + j * 8 * SharedB::kPitchBytes);
    }
  };

  simt::wait_for_copies<kStages - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);
  int read_stage = 0, write_stage = kStages - 1;

  // Compute, and load the tile that is kStages - 1 ahead
#pragma unroll 1
  for (int tile = 0; tile < work.tiles; ++tile) {
    copy_next(write_stage, kDepth);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 1) {
        simt::wait_for_copies<kStages - 2>();
        __syncthreads();
        write_stage = read_stage;
        read_stage = read_stage + 1 == kStages ? 0 : read_stage + 1;
      }
      load_fragments(read_stage, 1 - half, 1 - half);
#pragma unroll
      for (int i = 0; i < kFragmentsA; ++i) {
#pragma unroll
        for (int j = 0; j < kFragmentsB; ++j) mma(sum[i][j], a[half][i], b[half][j]);
      }
    }
  }
  simt::wait_for_copies<0>();
  if (output.clustered) {
    __syncthreads();  // the slice takes the place of the stages
  }

  // Store.
#pragma unroll
  for (int i = 0; i < kFragmentsA; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + 16 * i + 2 * group + half;
#pragma unroll
      for (int j = 0; j < kFragmentsB; ++j) {
        const int col = warp_col + 8 * j + 2 * member;
        work.store(output, shared_memory, row, col,
                   Vec<double, 2>{{sum[i][j][half][0], sum[i][j][half][1]}});
      }
    }
  }
  if (output.clustered) work.sum_in_cluster(output, shared_memory);
}

}  // namespace dmma
}  // namespace my_ops
