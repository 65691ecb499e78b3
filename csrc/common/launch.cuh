// Host side of a .cu file: the only way in which my_ops launches a kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/ceil_div.h"
#include "common/cuda_context.h"

namespace my_ops {

// Dynamic shared memory above the default needs an opt-in for each kernel.
template <typename... Params>
void allow_shared_bytes(void (*kernel)(Params...), size_t bytes) {
  constexpr size_t kDefaultBytes = 48 * 1024;
  if (bytes <= kDefaultBytes) return;
  MY_OPS_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(bytes)));
}

// Launches `kernel` on the current stream of the current device and checks the launch.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, Args... args) {
  allow_shared_bytes(kernel, shared_bytes);
  kernel<<<grid, block, shared_bytes, current_stream()>>>(args...);
  MY_OPS_CUDA_CHECK(cudaGetLastError());
}

// What the driver said about the device that it was asked about last, as launches ask again and
// again.
struct KnownOfDevice {
  int device = -1;
  bool answer = false;

  template <typename Ask>
  bool get(const Ask& ask) {
    int current = 0;
    MY_OPS_CUDA_CHECK(cudaGetDevice(&current));
    if (current != device) {
      answer = ask();
      device = current;
    }
    return answer;
  }
};

// Whether `kernel`, any of this library's, has its code for clusters on the current device. A
// Hopper GPU for which the driver compiled the PTX of 8.0 has none.
inline bool compiled_for_clusters(const void* kernel) {
  thread_local KnownOfDevice known;
  return known.get([&] {
    cudaFuncAttributes attributes;
    MY_OPS_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    return attributes.ptxVersion >= 90;
  });
}

// Whether the current device runs `kernel` in clusters of blocks, and overlapping with others.
template <typename... Params>
bool runs_clusters(void (*kernel)(Params...)) {
  return current_device_properties().major >= 9 &&
         compiled_for_clusters(reinterpret_cast<const void*>(kernel));
}

// Whether the current device has wgmma and `kernel`, whose body exists for sm_90a only, was
// compiled for it: a kernel without a body allows 32 threads (sm90_cluster.cuh), fewer than
// `threads`. Kernels of the same parameters share the answer that the first of them got.
template <typename... Params>
bool runs_wgmma(void (*kernel)(Params...), int threads) {
  thread_local KnownOfDevice known;
  return known.get([&] {
    const cudaDeviceProp& device = current_device_properties();
    if (device.major != 9 || device.minor != 0) return false;
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    return attributes.maxThreadsPerBlock >= threads;
  });
}

// What a launch asks for beyond its size.
struct LaunchOptions {
  unsigned cluster = 1;      // blocks of a cluster
  bool overlapping = false;  // may begin before the kernel in front of it ends (griddepcontrol)
};

// Sets the attributes by which a launch asks for these options, and returns their number.
inline unsigned launch_attributes(const LaunchOptions& options,
                                  cudaLaunchAttribute (&attributes)[2]) {
  unsigned count = 0;
  if (options.cluster > 1) {
    auto& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = options.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (options.overlapping) {
    auto& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return count;
}

// As launch(), with options.
template <typename... Params, typename... Args>
void launch_with(const LaunchOptions& options, void (*kernel)(Params...), dim3 grid, dim3 block,
                 size_t shared_bytes, Args... args) {
  allow_shared_bytes(kernel, shared_bytes);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = current_stream();
  config.attrs = attributes;
  config.numAttrs = launch_attributes(options, attributes);
  MY_OPS_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

}  // namespace my_ops
