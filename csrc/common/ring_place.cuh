// A position in a ring of slots in shared memory. Device only, needs no torch.
#pragma once

namespace my_ops {

// A slot, and whether this round through the slots is an odd one.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  int parity = 0;

  // So many slots after the ring's first one.
  __device__ __forceinline__ static RingPlace after(int slots) {
    return {slots % kSlots, slots / kSlots & 1};
  }

  // Without a branch: with one in a loop of wgmma instructions the compiler has each of them wait
  // for the one before it.
  __device__ __forceinline__ RingPlace ahead(int slots) const {
    const bool wraps = slot + slots >= kSlots;
    return {wraps ? slot + slots - kSlots : slot + slots, wraps ? parity ^ 1 : parity};
  }
};

}  // namespace my_ops
