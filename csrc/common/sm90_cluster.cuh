// Device only, compute capability 9.0 and later: the blocks of a cluster. Needs no torch.
#pragma once

#include <cstdint>
#include <cstring>

// The launch bounds of a kernel whose body exists for sm_90a only: one block on an SM, in clusters.
// Compiled for anything else it allows 32 threads, by which the host can tell (runs_wgmma).
// The first macro leaves the size of the clusters to the launch.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define MY_OPS_SM90_BLOCKS(threads) __launch_bounds__(threads, 1)
#define MY_OPS_SM90_KERNEL(threads, cluster) \
  MY_OPS_SM90_BLOCKS(threads) __cluster_dims__(cluster, 1, 1)
#else
#define MY_OPS_SM90_BLOCKS(threads) __launch_bounds__(32)
#define MY_OPS_SM90_KERNEL(threads, cluster) MY_OPS_SM90_BLOCKS(threads)
#endif

namespace my_ops {
namespace sm90 {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The place of this block's cluster in a grid of one dimension, and the number of clusters. A block
// that was launched without a cluster is one by itself.
__device__ __forceinline__ int cluster_index() {
  int index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
__device__ __forceinline__ int clusters() {
  int count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}

// The barrier of the cluster in two parts, for all threads. All that it tells is that every block
// has started and, with fence_barrier_init before it, has initialized its barriers.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Loads what lies at shared address `address` in block `rank` of the cluster.
template <typename T>
__device__ __forceinline__ T load_at_rank(uint32_t address, int rank) {
  T value{};
#if __CUDA_ARCH__ >= 900
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "one load");
  uint32_t words[sizeof(T) / 4];
  if constexpr (sizeof(T) == 16) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %4, %5;\n"
        "ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [remote];\n}"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "r"(address), "r"(rank)
        : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %2, %3;\n"
        "ld.shared::cluster.v2.b32 {%0, %1}, [remote];\n}"
        : "=r"(words[0]), "=r"(words[1])
        : "r"(address), "r"(rank)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %1, %2;\n"
        "ld.shared::cluster.b32 %0, [remote];\n}"
        : "=r"(words[0])
        : "r"(address), "r"(rank)
        : "memory");
  }
  memcpy(&value, words, sizeof(T));
#endif
  return value;
}

// Where `address` of block `rank` lies in the addresses of the cluster.
__device__ __forceinline__ uint32_t address_at_rank(uint32_t address, int rank) {
  uint32_t remote = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
  return remote;
}

// Stores to another block and does not wait: the 16 bytes count at a barrier of that block.
__device__ __forceinline__ void store_remote_async(uint32_t remote, float4 value,
                                                   uint32_t remote_barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(remote_barrier)
      : "memory");
#endif
}

// load_at_rank() with the address of `mine`, a pointer into this block's shared memory.
template <typename T>
__device__ __forceinline__ T load_at_rank(const T* mine, int rank) {
  return load_at_rank<T>(static_cast<uint32_t>(__cvta_generic_to_shared(mine)), rank);
}

}  // namespace sm90
}  // namespace my_ops
