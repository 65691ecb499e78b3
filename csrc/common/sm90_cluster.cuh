// Device, sm_90a: the blocks of a cluster. Needs no torch header.
#pragma once

#include <cstdint>

// The launch bounds of a kernel whose body exists for sm_90a only: one block on an SM, in clusters.
// Where it is compiled for something else it holds 32 threads, by which the host can tell.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define MY_OPS_SM90_KERNEL(threads, cluster) \
  __launch_bounds__(threads, 1) __cluster_dims__(cluster, 1, 1)
#else
#define MY_OPS_SM90_KERNEL(threads, cluster) __launch_bounds__(32)
#endif

namespace my_ops {
namespace sm90 {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

}  // namespace sm90
}  // namespace my_ops
