// Host side of a .cu file: the only way in which my_ops launches a kernel.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "common/ceil_div.h"

namespace my_ops {

// Dynamic shared memory above this needs an opt-in for each kernel.
constexpr size_t kDefaultSharedBytes = 48 * 1024;

// Launches `kernel` on the current stream of the current device and checks the launch.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, Args... args) {
  if (shared_bytes > kDefaultSharedBytes) {
    C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)));
  }
  kernel<<<grid, block, shared_bytes, c10::cuda::getCurrentCUDAStream()>>>(args...);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// What a launch asks for beyond its size.
struct LaunchOptions {
  unsigned cluster = 1;      // blocks of a cluster
  bool overlapping = false;  // may begin before the kernel in front of it ends (griddepcontrol)
};

template <typename... Params, typename... Args>
void launch_with(const LaunchOptions& options, void (*kernel)(Params...), dim3 grid, dim3 block,
                 size_t shared_bytes, Args... args) {
  if (shared_bytes > kDefaultSharedBytes) {
    C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)));
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = c10::cuda::getCurrentCUDAStream();
  config.attrs = attributes;
  if (options.cluster > 1) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = options.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (options.overlapping) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

}  // namespace my_ops
