// Device only: addresses in shared memory as PTX takes them. Needs no torch.
#pragma once

#include <cstdint>

namespace my_ops {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace my_ops
