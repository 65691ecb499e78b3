// Device only, sm_90a: mbarriers in shared memory, by 32-bit shared address. Needs no torch.
#pragma once

#include <cstdint>

namespace my_ops {
namespace sm90 {

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes the initialized barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and announces `bytes` that copies will bring before the phase may end.
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Announces `bytes` without arriving; the arrival comes later.
__device__ __forceinline__ void expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives at the barrier that lies at the same address in block `rank` of the cluster. Orders
// nothing beyond this block: release at cluster scope would be a MEMBAR.GPU, which took half of a
// kernel's time.
__device__ __forceinline__ void arrive_at_rank(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// The same at an address that address_at_rank() gave.
__device__ __forceinline__ void arrive_remote(uint32_t remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}

#define MY_OPS_WAIT_BARRIER(order)              \
  asm volatile(                                 \
      "{\n.reg .pred done;\n"                   \
      "again_%=:\n"                             \
      "mbarrier.try_wait.parity" order          \
      ".shared::cta.b64 done, [%0], %1;\n"      \
      "@!done bra again_%=;\n}" ::"r"(barrier), \
      "r"(parity)                               \
      : "memory")

// Waits for the end of the phase of the given parity.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  MY_OPS_WAIT_BARRIER("");
}

// The same where what other blocks of the cluster wrote is then read.
__device__ __forceinline__ void wait_cluster_barrier(uint32_t barrier, uint32_t parity) {
  MY_OPS_WAIT_BARRIER(".acquire.cluster");
}

#undef MY_OPS_WAIT_BARRIER

// Whether that phase is over, without waiting.
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n}"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}

}  // namespace sm90
}  // namespace my_ops
