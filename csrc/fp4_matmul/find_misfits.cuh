// Which E8M0 scales the wide kernel's float16 operands cannot hold. Device only, needs no torch.
#pragma once

#include "fp4_matmul/fp4_e8m0.cuh"
#include "fp4_matmul/fp4_misfits.cuh"

namespace my_ops {

// misfits[block]: whether a scale that the block looked at lies outside of e8m0_fits and has a code
// that is not zero.
static __global__ void __launch_bounds__(kMisfitThreads)
    find_misfits_kernel(const uint8_t* codes, const uint8_t* scales, int64_t count, int* misfits) {
  bool found = false;
  for (int64_t i = blockIdx.x * int64_t{kMisfitThreads} + threadIdx.x; i < count;
       i += kMisfitBlocks * kMisfitThreads) {
    if (e8m0_fits<__half>(scales[i])) continue;
    const uint4 words = reinterpret_cast<const uint4*>(codes)[i];
    found |= ((words.x | words.y | words.z | words.w) & 0x77777777u) != 0 || scales[i] == kE8M0NaN;
  }
  const int any = __syncthreads_or(found);
  if (threadIdx.x == 0) misfits[blockIdx.x] = any;
}

}  // namespace my_ops
