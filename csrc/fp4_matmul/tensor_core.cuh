// The PTX that the FP4 product is built from: asynchronous copies, ldmatrix, mma. Device only,
// needs no torch and compute capability 8.0.
#pragma once

#include <cstdint>

#include "common/shared_address.cuh"

namespace my_ops {

// Starts a copy of kBytes (4, 8 or 16), of which the first `valid` are read and the rest are zero.
template <int kBytes>
__device__ __forceinline__ void copy_async_to(uint32_t shared, const void* global, int valid) {
  if constexpr (kBytes == 16) {  // .cg leaves L1 to the scales
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(valid)
                 : "memory");
  }
}

// The same for a word of bytes that may end within it. Such an end is loaded byte by byte, as
// compute-sanitizer takes the whole word for read.
__device__ __forceinline__ void copy_async_bytes(uint32_t shared, const uint8_t* global,
                                                 int valid) {
  if (valid <= 0 || valid >= 4) return copy_async_to<4>(shared, global, valid <= 0 ? 0 : 4);
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (i < valid) word |= static_cast<uint32_t>(global[i]) << 8 * i;
  }
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}

template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int valid) {
  copy_async_to<kBytes>(shared_address(shared), global, valid);
}

__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's youngest groups are still on their way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit elements. Lane l names row l % 8 of matrix l / 8; fragment[i] is then
// elements (lane / 4, 2 * (lane % 4)) and its right neighbour of matrix i, or of its transpose.
template <bool kTranspose>
__device__ __forceinline__ void load_matrices(uint32_t (&fragment)[4], const void* row) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}

// sum [16, 8] += a [16, 16] * b [16, 8], bf16 with float32 sums.
__device__ __forceinline__ void mma_bf16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b_low,
                                         uint32_t b_high) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

}  // namespace my_ops
