// C = A B on Hopper's tensor cores, from planes of narrow elements. Device only, sm_90a, needs no
// torch.
//
// A persistent block takes one piece of work after the other: a tile of 128 x kCols of C, or a
// slice of its K. One warp (the producer) has the copy engine bring the planes of A and B into a
// ring of stages; two warpgroups (the consumers) multiply 64 rows each out of shared memory. The
// two blocks of a cluster own neighbouring row tiles: each fetches half of the B that both need and
// sends it to both.
//
// Tensor cores truncate where they add (seen on an H200: the sum of the products and the
// accumulator keeps 2 bits under float32's last, each addend and the result are cut off), so a long
// sum in their accumulator drifts. With kPromote the accumulator starts anew every kPromote stages
// and is added to a second one by FADD; while one warpgroup does that the other one keeps the
// tensor cores busy. No barrier makes them take turns: with one it was no faster (bf16x6) or 3 %
// slower (fp16x3).
//
// Large products run at the board's 700 W, with clocks near 1.5 GHz, so what counts is energy: the
// fewest bytes through L2 (clusters of two, wide tiles; clusters of four leave SMs unused and lose
// 4 %) and the fewest promotions that the accuracy allows.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/sm90_cluster.cuh"
#include "common/sm90_mbarrier.cuh"
#include "common/sm90_warpgroup.cuh"
#include "matmul/wgmma_consume.cuh"
#include "matmul/wgmma_produce.cuh"

namespace my_ops {
namespace tensor_core {

template <class Tile, class Output>
__global__ void MY_OPS_SM90_KERNEL(Tile::kThreads, Tile::kCluster)
    matmul_wgmma_kernel(const __grid_constant__ Product<Output> product) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared_memory[];
  const Shared<Tile> shared{static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory))};
  const uint32_t rank = Tile::kCluster > 1 ? sm90::cluster_rank() : 0;
  let_next_kernel_start();

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      sm90::init_barrier(shared.full(stage), 1);
      sm90::init_barrier(shared.empty(stage), 4 * Tile::kConsumers * Tile::kCluster);
    }
    sm90::fence_barrier_init();
  }
  sm90::sync_cluster();
  wait_for_previous_kernel();
  if (!is_due(product)) return;

  if (threadIdx.x < 128) {
    sm90::release_registers<40>();
    if (threadIdx.x < 32) produce<Tile>(product, shared, rank);
  } else {
    sm90::claim_registers<232>();
    consume<Tile>(product, shared, rank);
  }
  // The other block may still send here.
  sm90::sync_cluster();
#endif
}

// Adds the slices of the cut tiles in order. Every thread adds what one thread of the kernel above
// holds in four neighbouring registers.
template <class Tile, class Output>
__global__ void __launch_bounds__(128 * Tile::kConsumers)
    sum_slices_kernel(const __grid_constant__ Product<Output> product) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kConsumerThreads = 128 * Tile::kConsumers;
  constexpr int kStrips = Tile::kAccumulators / 4;
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (!is_due(product)) return;
  const int strip = blockIdx.x % kStrips, block = blockIdx.x / kStrips;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int64_t stride = int64_t{product.cut_tiles} * Tile::kCluster * kStrips * kConsumerThreads;
  const float4* partial = reinterpret_cast<const float4*>(product.partial) +
                          (int64_t{block} * kStrips + strip) * kConsumerThreads + thread;
  float sum[4] = {};
  for (int slice = 0; slice < product.slices; ++slice, partial += stride) {
    const float4 next = *partial;
    sum[0] += next.x;
    sum[1] += next.y;
    sum[2] += next.z;
    sum[3] += next.w;
  }
  const auto tile = tile_position(product.whole_tiles + block / Tile::kCluster, product.row_tiles,
                                  product.col_tiles);
  const int64_t row = (int64_t{tile.row} * Tile::kCluster + block % Tile::kCluster) * Tile::kRows +
                      thread / 32 * 16 + lane / 4;
  const int64_t col = int64_t{tile.col} * Tile::kCols + strip * 8 + lane % 4 * 2;
  product.output.template store<4>(row, col, sum);
#endif
}

}  // namespace tensor_core
}  // namespace my_ops
