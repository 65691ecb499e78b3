// What threads write into slots that mbarriers guard, where the copy engine cannot: by their own
// instructions, not by functions that serve elsewhere, too. compute-sanitizer does not follow such
// slots when they are used again, and knows these writes by this file (tools/sanitize.py). Device
// only, needs no torch and compute capability 8.0.
#pragma once

#include <cstdint>

namespace my_ops {

// Starts a copy of kBytes (8 or 16), of which the first `valid` are read and the rest are zero.
template <int kBytes>
__device__ __forceinline__ void copy_to_slot(uint32_t slot, const void* global, int valid) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(slot), "l"(global),
                 "r"(valid)
                 : "memory");
  } else {
    static_assert(kBytes == 8);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(slot), "l"(global), "r"(valid)
                 : "memory");
  }
}

__device__ __forceinline__ void store_to_slot(uint32_t slot, uint32_t byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(slot), "r"(byte) : "memory");
}

// The thread arrives when its copies until here are done.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace my_ops
