// Device only, sm_90a: moves registers between warpgroups that play different parts in one block.
// Needs no torch.
#pragma once

namespace my_ops {
namespace sm90 {

// A warpgroup gives registers back, or waits until it has got more.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace sm90
}  // namespace my_ops
