// C = A B in TF32, straight from float32 operands: no planes, one launch. Device only, sm_90a,
// needs no torch.
//
// A block owns a tile of C, or a slice of its K. One warp (the producer) has the copy engine bring
// stages of A and B into a ring in shared memory; on the way it rounds them to TF32: to the
// nearest, ties to even, infinities and NaNs stay (seen on an H200, for maps of that element type).
// One or two warpgroups (the consumers) multiply 64 rows each.
//
// The instruction reads TF32 along K only from shared memory. B must lie so; where A runs along its
// rows the consumers load it into registers.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_cluster.cuh"
#include "common/sm90_mbarrier.cuh"
#include "common/sm90_warpgroup.cuh"
#include "matmul/tf32_consume.cuh"
#include "matmul/tf32_tile.cuh"
#include "matmul/wgmma_ring.cuh"

namespace my_ops {
namespace tf32 {

// A lane for each copy of a stage: B's tile, then A's, whole or in boxes.
template <class Tile, bool kAlongRows>
__device__ __forceinline__ void produce(const Product& product, const Block<Tile>& block) {
  constexpr int kCopies = 1 + (kAlongRows ? Tile::kBoxes : 1);
  const int lane = static_cast<int>(threadIdx.x);
  const bool of_a = lane > 0, boxes = of_a && kAlongRows;
  const CUtensorMap& map = of_a ? product.A : product.B;
  const uint32_t offset = of_a ? (lane - 1) * kBoxBytes : Tile::kOffsetB;
  const int outer = boxes ? block.row + (lane - 1) * kBoxRows : of_a ? block.row : block.col;
  Ring<Tile::kStages> ring;
  for (int i = 0; i < block.k_tiles; ++i) {
    sm90::wait_barrier(block.empty(ring.stage), ring.parity ^ 1);
    const uint32_t full = block.full(ring.stage);
    if (lane == 0) sm90::arrive_expecting(full, Tile::kStageBytes);
    __syncwarp();
    const int k = (block.first_k + i) * kDepth;
    if (lane < kCopies) {
      sm90::box_copy(block.stage(ring.stage) + offset, map, boxes ? k : outer, boxes ? outer : k,
                     full);
    }
    ring.next();
  }
}

template <class Tile, bool kAlongRows, bool kTransposed>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kThreads)
    matmul_tf32_kernel(const __grid_constant__ Product product) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared_memory[];
  const Block<Tile> block(product, static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      sm90::init_barrier(block.full(stage), 1);
      sm90::init_barrier(block.empty(stage), 4 * Tile::kConsumers);
    }
    if (Tile::kSliced) {
      sm90::init_barrier(block.exchanged(), 1);
      const int strips = (Tile::kStrips - 1 - block.slice) / block.slices + 1;
      sm90::arrive_expecting(block.exchanged(), strips * (block.slices - 1) * Tile::kStripBytes);
    }
    sm90::fence_barrier_init();
  }
  __syncthreads();
  wait_for_previous_kernel();
  if (threadIdx.x < 128) {
    if (Tile::kMovesRegisters) sm90::release_registers<40>();
    if (threadIdx.x < 32) produce<Tile, kAlongRows>(product, block);
    __syncwarp();
    if (Tile::kSliced && block.slices > 1) {
      sm90::arrive_at_cluster();
      sm90::wait_cluster();
      sm90::arrive_at_cluster();
    }
  } else {
    if (Tile::kMovesRegisters) sm90::claim_registers<232>();
    consume<Tile, kAlongRows, kTransposed>(product, block);
  }
  // What this block sends is read from its memory until it is there.
  if (Tile::kSliced && block.slices > 1) sm90::wait_cluster();
#endif
}

}  // namespace tf32
}  // namespace my_ops
