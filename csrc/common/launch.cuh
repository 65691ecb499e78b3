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

}  // namespace my_ops
