// Registers from the threads that need few to those that need many. Device only, needs no torch.
#pragma once

#include "common/sm90_warpgroup.cuh"

namespace my_ops {

// Whole warpgroups, on Hopper only; elsewhere all threads keep what the launch gave them.
template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  sm90::claim_registers<kRegisters>();
#endif
}
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  sm90::release_registers<kRegisters>();
#endif
}

}  // namespace my_ops
