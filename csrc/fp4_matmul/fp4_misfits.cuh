// Flags on the device that say whether a kernel is to do its work. Device only, needs no torch.
#pragma once

namespace my_ops {

// Of find_misfits_kernel, which writes a flag a block.
constexpr int kMisfitBlocks = 128, kMisfitThreads = 256;

// Int32 flags of E8M0 scales that float16 operands cannot hold.
struct Misfits {
  int* flags = nullptr;
  int count = 0;
};

__device__ __forceinline__ bool any_misfit(const int* flags, int count) {
  bool found = false;
  for (int i = threadIdx.x % 32; i < count; i += 32) found |= flags[i] != 0;
  return __any_sync(~0u, found);
}

// The same, looked for by all threads of a block: of the flags each reads one at most.
__device__ __forceinline__ bool any_misfit_for_block(const Misfits& misfits) {
  bool found = false;
  for (int i = threadIdx.x; i < misfits.count; i += blockDim.x) found |= misfits.flags[i] != 0;
  return __syncthreads_or(found);
}

}  // namespace my_ops
