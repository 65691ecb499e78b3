// The form in which the tensor-core kernel reads its operands. Device only, needs no torch.
//
// A matrix [rows, K] becomes kPlanes matrices of narrow elements ("planes") that add up to it.
// Rows and K are padded with zeros to whole blocks of kGroupRows x kRowBytes; a block lies in
// memory as it shall lie in shared memory, already swizzled, so that one plain bulk copy brings it
// there: the kernel needs no tensor map, sees no ragged edge and no layout of the source.
#pragma once

#include <cstdint>

#include "common/sm90_wgmma.cuh"

namespace my_ops {
namespace tensor_core {

constexpr int kGroupRows = 64;

// Blocks are ordered [group][k tile][plane].
template <int kRowBytes_, int kPlanes_>
struct PlaneLayout {
  static constexpr int kRowBytes = kRowBytes_, kPlanes = kPlanes_;
  static constexpr int kBlockBytes = kGroupRows * kRowBytes;

  static __host__ __device__ __forceinline__ int64_t block_offset(int64_t group, int64_t k_tile,
                                                                  int64_t k_tiles, int plane) {
    return ((group * k_tiles + k_tile) * kPlanes + plane) * kBlockBytes;
  }

  // Of a 16-byte chunk inside its block.
  static __host__ __device__ __forceinline__ int chunk_offset(int row, int chunk) {
    return row * kRowBytes + sm90::swizzled_chunk<kRowBytes>(row, chunk) * 16;
  }
};

}  // namespace tensor_core
}  // namespace my_ops
