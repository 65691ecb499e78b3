// out = A * B, float32 sums, for any operands of operands.cuh on any GPU: the kernel of products
// that no faster one takes, and its configuration. Needs no torch.
//
// A block owns kBlockM x kBlockN elements of out and walks along the contracted dimension in steps
// of 64. Per step: the raw bytes of both tiles (codes and scales, or dense elements) arrive in
// shared memory by asynchronous copies begun kStages steps earlier; the threads decode them into
// bf16 tiles; the warps multiply these with mma.sync. Products are exact. The tensor core cuts off
// low bits when it adds, so each step's sum starts at zero and joins the float32 total by an
// ordinary rounded addition: the error is that of a float32 product, whatever K is.
#pragma once

#include "common/overlap.cuh"
#include "fp4_matmul/fp4_misfits.cuh"
#include "fp4_matmul/operands.cuh"
#include "fp4_matmul/product_output.cuh"

namespace my_ops {

// A warp with 64 x 32 reads 3 KB of fragments for 32 mma, which shared memory can just feed.
using LargeTile = ProductTile<128, 128, 64, 32, 2>;
// Few rows: what counts is bytes in flight, so narrow blocks (more of them) and more stages.
using SmallTile = ProductTile<16, 64, 16, 16, 4>;

template <typename Tile>
__host__ __device__ int64_t blocks_n(int64_t N) {
  return (N + Tile::kBlockN - 1) / Tile::kBlockN;
}

// Large tiles where they fill the device (and its shared memory holds the stages of an fp32
// operand), else small ones. Every element is summed in the same order in both.
inline bool use_large_tile(int64_t M, int64_t N, size_t large_shared_bytes, size_t max_shared_bytes,
                           int multiprocessors) {
  const int64_t blocks = (M + 127) / 128 * blocks_n<LargeTile>(N);
  return M > 16 && 2 * blocks >= multiprocessors && large_shared_bytes <= max_shared_bytes;
}

// The 16 outer x 16 depth elements that begin at (outer, depth) of a tile, as mma's operand A. As
// operand B they are two fragments of 8 columns: registers 0 and 2, and 1 and 3.
template <typename Shape, Major kMajor>
__device__ __forceinline__ void load_fragment(uint32_t (&fragment)[4], const __nv_bfloat16* tile,
                                              int outer, int depth) {
  const int lane = threadIdx.x % 32;
  const int outer_of_lane = outer + lane / 8 % 2 * 8;
  const int depth_of_lane = depth + lane / 16 * 8;
  if constexpr (kMajor == Major::depth) {
    const int row = outer_of_lane + lane % 8;
    load_matrices<false>(fragment, tile + row * Shape::kPitch + depth_of_lane);
  } else {
    const int row = depth_of_lane + lane % 8;
    load_matrices<true>(fragment, tile + row * Shape::kPitch + outer_of_lane);
  }
}

// One step of 64 for one warp: sums += A tile * B tile, both of them in shared memory.
template <typename Tile, typename ShapeA, Major kMajorA, typename ShapeB, Major kMajorB>
__device__ __forceinline__ void multiply_tiles(Sums<Tile>& sums, const __nv_bfloat16* tile_a,
                                               const __nv_bfloat16* tile_b, int warp_m,
                                               int warp_n) {
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    uint32_t a[Tile::kTilesM][4];
#pragma unroll
    for (int i = 0; i < Tile::kTilesM; ++i) {
      load_fragment<ShapeA, kMajorA>(a[i], tile_a, warp_m + 16 * i, depth);
    }
#pragma unroll
    for (int j = 0; j < Tile::kTilesN; ++j) {
      uint32_t b[4];
      load_fragment<ShapeB, kMajorB>(b, tile_b, warp_n + 16 * j, depth);
#pragma unroll
      for (int i = 0; i < Tile::kTilesM; ++i) {
        mma_bf16(sums[i][2 * j], a[i], b[0], b[2]);
        mma_bf16(sums[i][2 * j + 1], a[i], b[1], b[3]);
      }
    }
  }
}

template <typename Tile, typename OperandA, typename OperandB>
struct ProductLayout {
  using ShapeA = TileShape<OperandA::kMajor, Tile::kBlockM>;
  using ShapeB = TileShape<OperandB::kMajor, Tile::kBlockN>;
  static constexpr int kDecodedBytes = 2 * (ShapeA::kElements + ShapeB::kElements);

  __host__ __device__ static int stage_bytes(const OperandA& a, const OperandB& b) {
    return a.template stage_bytes<ShapeA>() + b.template stage_bytes<ShapeB>();
  }
  __host__ __device__ static size_t shared_bytes(const OperandA& a, const OperandB& b) {
    return kDecodedBytes + Tile::kStages * stage_bytes(a, b);
  }
  static_assert(kDecodedBytes >= Tile::kThreads / 2 * Tile::kStagingPitch * 4,
                "the decoded tiles hold every warp's 16 staged rows");
};

template <typename Tile, typename OperandA, typename OperandB>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    fp4_matmul_kernel(const OperandA a, const OperandB b, const ProductOutput out) {
  using Layout = ProductLayout<Tile, OperandA, OperandB>;
  using ShapeA = typename Layout::ShapeA;
  using ShapeB = typename Layout::ShapeB;
  constexpr int kThreads = Tile::kThreads;
  if (out.only_if_any.flags != nullptr) {
    wait_for_previous_kernel();
    if (!any_misfit_for_block(out.only_if_any)) return;
  }

  extern __shared__ __align__(16) uint8_t shared[];
  __nv_bfloat16* const tile_a = reinterpret_cast<__nv_bfloat16*>(shared);
  __nv_bfloat16* const tile_b = tile_a + ShapeA::kElements;
  uint8_t* const stages = shared + Layout::kDecodedBytes;
  const int stage_bytes = Layout::stage_bytes(a, b);
  const int stage_bytes_a = a.template stage_bytes<ShapeA>();

  const int64_t first_m = blockIdx.x / blocks_n<Tile>(out.N) * Tile::kBlockM;
  const int64_t first_n = blockIdx.x % blocks_n<Tile>(out.N) * Tile::kBlockN;
  const int warp = threadIdx.x / 32;
  const int warp_m = warp / Tile::kWarpsN * Tile::kWarpM;
  const int warp_n = warp % Tile::kWarpsN * Tile::kWarpN;
  const SplitScale scale_a = a.global_scale();
  const SplitScale scale_b = b.global_scale();

  const int64_t steps = (out.K + kDepth - 1) / kDepth;
  const auto fetch = [&](int64_t step) {
    if (step < steps) {
      uint8_t* const stage = stages + step % Tile::kStages * stage_bytes;
      const int64_t depth = step * kDepth;
      a.template fetch<ShapeA, kThreads>(stage, ShapeA::row(first_m, depth),
                                         ShapeA::col(first_m, depth));
      b.template fetch<ShapeB, kThreads>(stage + stage_bytes_a, ShapeB::row(first_n, depth),
                                         ShapeB::col(first_n, depth));
    }
    copy_async_commit();  // empty groups too, so that the count of groups is the count of steps
  };

  Sums<Tile> total = {};
  for (int step = 0; step < Tile::kStages; ++step) fetch(step);

  for (int64_t step = 0; step < steps; ++step) {
    const uint8_t* const stage = stages + step % Tile::kStages * stage_bytes;
    const int64_t depth = step * kDepth;
    Sums<Tile> sums = {};
    copy_async_wait<Tile::kStages - 1>();

    // Smallest piece first. Both barriers are needed: the first ends the reads of the decoded tiles
    // (and shows every thread's copies to all), the second ends the writes.
    for (int piece = a.pieces() - 1; piece >= 0; --piece) {
      __syncthreads();
      a.template decode<ShapeA, kThreads>(tile_a, stage, ShapeA::col(first_m, depth), piece,
                                          scale_a.power_of_two);
      if (piece == a.pieces() - 1) {
        b.template decode<ShapeB, kThreads>(tile_b, stage + stage_bytes_a,
                                            ShapeB::col(first_n, depth), 0, scale_b.power_of_two);
      }
      __syncthreads();
      if (piece == 0) fetch(step + Tile::kStages);
      multiply_tiles<Tile, ShapeA, OperandA::kMajor, ShapeB, OperandB::kMajor>(sums, tile_a, tile_b,
                                                                               warp_m, warp_n);
    }

#pragma unroll
    for (int i = 0; i < Tile::kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * Tile::kTilesN; ++j) {
#pragma unroll
        for (int element = 0; element < 4; ++element) total[i][j][element] += sums[i][j][element];
      }
    }
  }

  // Every copy is done (the last groups are empty); the decoded tiles become staging space.
  __syncthreads();
  float* const staging = reinterpret_cast<float*>(shared) + warp * 16 * Tile::kStagingPitch;
  store_sums<Tile>(out, total, staging, first_m + warp_m, first_n + warp_n,
                   scale_a.rest * scale_b.rest);
}

}  // namespace my_ops
