// Device, sm_90a: the copy engine, global to shared memory. One thread issues a copy, whose bytes
// count at an mbarrier. Needs no torch header.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace my_ops {
namespace sm90 {

// `bytes`, a multiple of 16, from 16-byte aligned memory.
__device__ __forceinline__ void bulk_copy(uint32_t shared, const void* global, int bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same into every block of the cluster whose bit is set in `ranks`, at the same shared address,
// counting at the barrier of the same address there.
__device__ __forceinline__ void bulk_copy_to_ranks(uint32_t shared, const void* global, int bytes,
                                                   uint32_t barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(ranks)
      : "memory");
}

// The box of a matrix that begins at (row, col), see sm90_tensor_map.h. What lies outside of the
// matrix becomes zero, and counts.
__device__ __forceinline__ void box_copy(uint32_t shared, const CUtensorMap& map, int row, int col,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
      "l"(&map), "r"(col), "r"(row), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void box_copy_to_ranks(uint32_t shared, const CUtensorMap& map, int row,
                                                  int col, uint32_t barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(&map), "r"(col), "r"(row), "r"(barrier), "h"(ranks)
      : "memory");
}

}  // namespace sm90
}  // namespace my_ops
