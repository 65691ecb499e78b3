// Barriers as members of structures in shared memory, and the copies and stores that count at them.
// Device only, compute capability 9.0 and later, needs no torch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/shared_address.cuh"
#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"

namespace my_ops {

// A phase is over after `arrivals` arrivals and all bytes that these announced. A wait names the
// parity of the phase that it waits for, 0 for the first.
class MBarrier {
 public:
  __device__ __forceinline__ void init(int arrivals) { sm90::init_barrier(address(), arrivals); }
  __device__ __forceinline__ void arrive() { sm90::arrive(address()); }
  __device__ __forceinline__ void arrive_expecting(int bytes) {
    sm90::arrive_expecting(address(), bytes);
  }
  __device__ __forceinline__ void wait(int parity) { sm90::wait_barrier(address(), parity); }
  __device__ __forceinline__ bool passed(int parity) {
    return sm90::barrier_passed(address(), parity);
  }

  // One thread copies `bytes` into shared memory; they count towards the current phase.
  __device__ __forceinline__ void copy(void* shared, const void* global, int bytes) {
    sm90::bulk_copy(shared_address(shared), global, bytes, address());
  }

  // Stores into the shared memory of block `rank` of the cluster, at the place that `shared` has in
  // this one. The 8 bytes count at the same barrier there. No fence is needed: one of cluster scope
  // would wait for all memory accesses of the thread and empty the L1 cache.
  __device__ __forceinline__ void store_to_block(double* shared, double value, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote, remote_barrier;\n"
        "mapa.shared::cluster.u32 remote, %0, %3;\n"
        "mapa.shared::cluster.u32 remote_barrier, %2, %3;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [remote], %1, "
        "[remote_barrier];\n"
        "}\n" ::"r"(shared_address(shared)),
        "d"(value), "r"(address()), "r"(rank)
        : "memory");
  }

 private:
  __device__ __forceinline__ uint32_t address() const { return shared_address(&state_); }

  uint64_t state_;
};

}  // namespace my_ops
