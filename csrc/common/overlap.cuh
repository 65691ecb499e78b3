// Device only: one kernel starts while the one before it in the stream still runs (compute
// capability 9.0 and later; before that these do nothing). The later one is launched as
// `overlapping` (launch.cuh). Needs no torch.
#pragma once

namespace my_ops {

// In the earlier kernel: from here on the blocks of the later one may take up free places.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// In the later kernel: waits for the earlier one; everything that it wrote is there from here on.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// In the later kernel, before it waits: the earlier one may still write to that memory, so it must
// not be read yet, but it can be on its way to L2. `bytes` is a multiple of 16, and so is the
// address.
__device__ __forceinline__ void prefetch_to_l2(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace my_ops
