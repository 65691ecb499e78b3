// Host side of this room's .cu files: what a launch has to know of the device and of its tensors.
#pragma once

#include "common/launch.cuh"
#include "common/tensor_view.h"
#include "rmsnorm/device_limits.h"

namespace my_ops {

template <typename Args>
DeviceLimits device_limits(void (*kernel)(Args)) {
  const cudaDeviceProp& device = current_device_properties();
  int max_cluster_blocks = 1;
  if (runs_clusters(kernel)) {
    const bool datacenter = device.major == 9 || device.major == 10;
    max_cluster_blocks = datacenter ? 16 : device.major >= 12 ? 8 : 1;
  }
  return {device.multiProcessorCount, static_cast<int>(device.sharedMemPerBlockOptin),
          max_cluster_blocks};
}

// Whether 16-byte chunks of these tensors, rows included, can be loaded and stored whole.
template <typename... Tensors>
bool rows_aligned(int64_t chunk_elements, const Tensors&... tensors) {
  const auto aligned = [&](const TensorView& tensor) {
    if (!tensor.defined()) return true;
    const int64_t chunk_bytes = chunk_elements * tensor.element_size();
    if (reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % chunk_bytes != 0) return false;
    if (tensor.size(-1) % chunk_elements != 0) return false;
    for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
      if (tensor.size(dim) > 1 && tensor.stride(dim) % chunk_elements != 0) return false;
    }
    return true;
  };
  return (aligned(tensors) && ...);
}

}  // namespace my_ops
