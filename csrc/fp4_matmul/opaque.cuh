// A number that the compiler knows nothing of before this place. Device only, needs no torch.
#pragma once

namespace my_ops {

// What is made of it is not made in front of a loop, where it would hold registers, nor again in
// it.
__device__ __forceinline__ int opaque(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

}  // namespace my_ops
