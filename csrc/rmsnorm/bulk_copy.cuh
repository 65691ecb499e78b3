// Copies into shared memory by the copy engine, and the barriers at which they complete. Device
// only, needs no torch; for compute capability 9.0 and later.
#pragma once

#include <cstdint>

namespace my_ops {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// A barrier completes a phase when `arrivals` threads have arrived and every byte that they
// announced has been copied; the first phase has parity 0.
struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals));
  }
  __device__ __forceinline__ void arrive_expecting(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  __device__ __forceinline__ void wait(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "waiting:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra waiting;\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }

  // Writes `value` into the shared memory of another block of the cluster; 8 bytes there count as
  // copied at this barrier's namesake. No fence is needed: one of cluster scope would wait for all
  // memory accesses of the thread and empty the L1 cache.
  __device__ __forceinline__ void store_remote(double* slot, double value, int block) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        ".reg .b32 remote_barrier;\n"
        "mapa.shared::cluster.u32 remote, %0, %3;\n"
        "mapa.shared::cluster.u32 remote_barrier, %2, %3;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [remote], %1, "
        "[remote_barrier];\n"
        "}\n" ::"r"(shared_address(slot)),
        "l"(__double_as_longlong(value)), "r"(shared_address(this)), "r"(block)
        : "memory");
  }
};

// After the barriers of a block were initialized, before anyone else may use them.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Every block of a cluster has published its barriers once all have arrived here.
__device__ __forceinline__ void arrive_published() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_published() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Starts a copy of `bytes` into shared memory that completes at `barrier`. Both addresses and the
// size are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes,
                                          Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

// Has the L2 cache ask for `bytes`. Nothing is read: what others still write there is seen later.
__device__ __forceinline__ void prefetch_bulk(const void* global, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes));
#endif
}

}  // namespace my_ops
