// The ring in shared memory through which wide rows of grad and x come. Device only, compute
// capability 9.0 and later, needs no torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/mbarrier.cuh"

namespace my_ops {

constexpr int kWideVectors = 4;  // chunks of a thread; twice as many in the widest rows

// Slots of the ring, and those by which the sums run ahead of the gradient. Three rows of 4 slots,
// or one and a half of 8.
template <int kVectors>
constexpr int kRingSlots = kVectors == kWideVectors ? 12 : 14;
template <int kVectors>
constexpr int kRingLead = kVectors == kWideVectors ? 4 : 2;

// The ring, and a row of what is added to grad_x where there is room.
constexpr int wide_shared_bytes_per_thread(int vectors) {
  return kChunkBytes * (vectors == kWideVectors ? 2 * kRingSlots<kWideVectors> + kWideVectors
                                                : 2 * kRingSlots<2 * kWideVectors>);
}

// A slot holds a chunk of grad and one of x for every computing thread; a row takes `vectors`
// slots. One thread, the producer, sends bulk copies into empty slots; the others wait for full
// ones.
template <int kSlots>
struct RingBarriers {
  MBarrier full[kSlots];
  MBarrier empty[kSlots];

  __device__ __forceinline__ void init(int warps) {
    for (int slot = 0; slot < kSlots; ++slot) {
      full[slot].init(1);
      empty[slot].init(warps);
    }
  }
};

// A position in the ring: a slot, and whether this round through the slots is an odd one.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  int parity = 0;

  __device__ __forceinline__ RingPlace ahead(int slots) const {
    const bool wraps = slot + slots >= kSlots;
    return {wraps ? slot + slots - kSlots : slot + slots, wraps ? parity ^ 1 : parity};
  }
};

// Slots on their way at the same time: 64 KB. Without the limit the memory system is so full that
// some multiprocessors get a third more than others, and all wait for the last: 3 to 5 % slower.
constexpr int kRingSlotsInFlight = 4;

// The producer: columns [first, first + columns) of every `row_step`-th row from `first_row`, slot
// by slot of `slot_columns`.
template <int kVectors, int kSlots, typename Args>
__device__ __forceinline__ void fill_ring(const Args& args, unsigned char* ring,
                                          RingBarriers<kSlots>& barriers, int64_t first,
                                          int columns, int slot_columns, int64_t first_row,
                                          int64_t row_step) {
  using x_t = std::remove_const_t<std::remove_pointer_t<decltype(args.x)>>;
  const int half_bytes = slot_columns * static_cast<int>(sizeof(x_t));
  RingPlace<kSlots> place;
  int sent = 0;
  for (int64_t row = first_row; row < args.rows; row += row_step) {
    const x_t* grad_row = args.grad + args.grad_layout.offset(row) + first;
    const x_t* x_row = args.x + args.x_layout.offset(row) + first;
    for (int v = 0; v < kVectors; ++v) {
      barriers.empty[place.slot].wait(place.parity ^ 1);
      if (sent >= kRingSlotsInFlight) {
        const RingPlace<kSlots> earlier = place.ahead(kSlots - kRingSlotsInFlight);
        barriers.full[earlier.slot].wait(earlier.parity ^ 1);
      }
      sent = min(sent + 1, kRingSlotsInFlight);
      const int bytes =
          max(0, min(slot_columns, columns - v * slot_columns)) * static_cast<int>(sizeof(x_t));
      MBarrier& full = barriers.full[place.slot];
      full.arrive_expecting(2 * bytes);
      if (bytes > 0) {
        unsigned char* slot = ring + place.slot * 2 * half_bytes;
        full.copy(slot, grad_row + v * slot_columns, bytes);
        full.copy(slot + half_bytes, x_row + v * slot_columns, bytes);
      }
      place = place.ahead(1);
    }
  }
}

}  // namespace my_ops
