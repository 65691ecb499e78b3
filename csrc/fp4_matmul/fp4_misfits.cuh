// Flags on the device that say whether a kernel is to do its work. Device only, needs no torch.
#pragma once

namespace my_ops {

constexpr int kMisfitBlocks = 128, kMisfitThreads = 256;

__device__ __forceinline__ bool any_misfit(const int* misfits) {
  bool found = false;
  for (int i = threadIdx.x % 32; i < kMisfitBlocks; i += 32) found |= misfits[i] != 0;
  return __any_sync(~0u, found);
}

}  // namespace my_ops
