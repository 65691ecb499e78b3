// The producer's part of the tensor-core kernel. Device only, sm_90a, needs no torch.
#pragma once

#include <cstdint>

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "matmul/wgmma_ring.cuh"
#include "matmul/wgmma_tile.cuh"

namespace my_ops {
namespace tensor_core {

template <class Tile, class Product>
__device__ __forceinline__ void produce(const Product& product, const Shared<Tile>& shared,
                                        uint32_t rank) {
  using Layout = typename Tile::Layout;
  constexpr int kPlanes = Tile::kPlanes;
  constexpr int kGroupsA = Tile::kRows / kGroupRows, kGroupsB = Tile::kCols / kGroupRows;
  constexpr int kCopiesA = kPlanes * kGroupsA, kCopies = kCopiesA + kPlanes * kGroupsB;
  static_assert(kCopies + kGroupsA + kGroupsB <= 32, "a lane for each copy");
  // This lane's copy: one block of one plane, or one group's scales. Groups past the matrix's end
  // repeat its last one; they only reach rows and columns that are not stored.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool scales = lane >= kCopies;
  const int copy = scales ? lane - kCopies : lane;
  const bool of_a = copy < (scales ? kGroupsA : kCopiesA);
  const int number = of_a ? copy : copy - (scales ? kGroupsA : kCopiesA);
  const int group = scales ? number : number / kPlanes, plane = scales ? 0 : number % kPlanes;
  const bool to_all = !scales && !of_a && Tile::kCluster > 1;
  const bool mine = scales ? Tile::kScaled && copy < kGroupsA + kGroupsB
                           : !to_all || number % Tile::kCluster == static_cast<int>(rank);
  const int last_group = (of_a ? product.groups_a : product.groups_b) - 1;
  const uint32_t plane_offset =
      of_a ? plane * Tile::kPlaneBytesA : Tile::kOffsetB + plane * Tile::kPlaneBytesB;
  const uint32_t offset = scales ? Tile::kStages * Tile::kStageBytes + copy * (kGroupRows * 4)
                                 : plane_offset + group * Layout::kBlockBytes;
  const int stage_stride = scales ? Tile::kScaleBytes : Tile::kStageBytes;
  const int bytes = scales ? kGroupRows * 4 : Layout::kBlockBytes;
  constexpr uint16_t kAllRanks = (1 << Tile::kCluster) - 1;

  Ring<Tile::kStages> ring;
  const int works = work_count(product);
  for (int index = blockIdx.x / Tile::kCluster; index < works;
       index += gridDim.x / Tile::kCluster) {
    const Work work = work_of_index<Tile::kUnit>(product, index);
    const auto tile = tile_position(work.tile, product.row_tiles, product.col_tiles);
    const int first_group = of_a ? (tile.row * Tile::kCluster + static_cast<int>(rank)) * kGroupsA
                                 : tile.col * kGroupsB;
    const int64_t source_group = min(first_group + group, last_group);
    const char* source = (of_a ? product.A : product.B) +
                         Layout::block_offset(source_group, work.first_k, product.k_tiles, plane);
    if (scales) {
      const int64_t unit = (source_group * product.k_tiles + work.first_k) / Tile::kUnit;
      source = reinterpret_cast<const char*>((of_a ? product.unscale_a : product.unscale_b) +
                                             unit * kGroupRows);
    }
    for (int k = 0; k < work.k_tiles; ++k) {
      sm90::wait_barrier(shared.empty(ring.stage), ring.parity ^ 1);
      const uint32_t full = shared.full(ring.stage);
      if (lane == 0) sm90::arrive_expecting(full, Tile::kStageBytes + Tile::kScaleBytes);
      __syncwarp();
      const uint32_t target = shared.base + ring.stage * stage_stride + offset;
      if (mine && to_all) {
        sm90::bulk_copy_to_ranks(target, source, bytes, full, kAllRanks);
      } else if (mine) {
        sm90::bulk_copy(target, source, bytes, full);
      }
      // The stages of one unit get the same scales.
      if (!scales) {
        source += kPlanes * Layout::kBlockBytes;
      } else if ((k + 1) % Tile::kUnit == 0) {
        source += kGroupRows * 4;
      }
      ring.next();
    }
  }
}

}  // namespace tensor_core
}  // namespace my_ops
