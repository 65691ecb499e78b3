// Device only, sm_90a: the copy engine, between global and shared memory and from shared to shared
// memory. One thread issues a copy; the bytes of one to shared memory count at an mbarrier. Needs
// no torch.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace my_ops {
namespace sm90 {

// True in one thread of the warp, all of which must be here. A branch on it lets the compiler issue
// one copy without asking every lane for its own.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n}"
      : "=r"(elected));
  return elected != 0;
}

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

// From this block's shared memory to `target` in that of block `rank` of the cluster, counting at
// the barrier there. What threads wrote must have gone through fence_for_copies().
__device__ __forceinline__ void bulk_copy_to_rank(uint32_t target, uint32_t source, int bytes,
                                                  uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %4;\n"
      "mapa.shared::cluster.u32 remote_barrier, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[remote], [%1], %2, [remote_barrier];\n}" ::"r"(target),
      "r"(source), "r"(bytes), "r"(barrier), "r"(rank)
      : "memory");
}

// In every thread that wrote, before a barrier after which the copy engine reads.
__device__ __forceinline__ void fence_for_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

// The box of a matrix in parts (encode_parts_map) that begins at part `part` of row `row`.
__device__ __forceinline__ void parts_copy(uint32_t shared, const CUtensorMap& map, int row,
                                           int part, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
      "l"(&map), "r"(0), "r"(part), "r"(row), "r"(barrier)
      : "memory");
}

// As box_copy(), to that place in every block of the cluster whose bit in `ranks` is set, each
// counting it at its own barrier.
__device__ __forceinline__ void box_copy_to_ranks(uint32_t shared, const CUtensorMap& map, int row,
                                                  int col, uint32_t barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(&map), "r"(col), "r"(row), "r"(barrier), "h"(ranks)
      : "memory");
}

// A box from shared memory into the matrix, but for what lies outside of it, as a group of its own
// (see wait_for_box_reads).
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t shared, int row,
                                          int col) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(col), "r"(row), "r"(shared)
      : "memory");
}

// In the thread that stored boxes: waits until at most kPending of the latest are still to be read
// from shared memory.
template <int kPending>
__device__ __forceinline__ void wait_for_box_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Brings a box to L2 only, as prefetch_to_l2() does with a stretch of memory.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map, int row, int col) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map),
               "r"(col), "r"(row)
               : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace sm90
}  // namespace my_ops
