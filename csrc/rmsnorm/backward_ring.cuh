// The ring in shared memory through which wide rows come. Device only, compute capability 9.0 and
// later, needs no torch.
#pragma once

#include <cstdint>

#include "common/ring_place.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/mbarrier.cuh"

namespace my_ops {

// A slot holds two chunks for every computing thread, mostly one of grad and one of x. One thread,
// the producer, sends bulk copies into empty slots; the others wait for full ones.
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

// Bytes of a block on their way at the same time. Without the limit the memory system is so full
// that some multiprocessors get a third more than others, and all wait for the last: 3 to 5 %
// slower.
constexpr int kRingBytesInFlight = 64 * 1024;

// The producer's side.
template <typename x_t, int kSlots>
class RingProducer {
 public:
  // `chunk_columns`: of one chunk for every thread; `columns`: of a row, in this block.
  __device__ __forceinline__ RingProducer(unsigned char* ring, RingBarriers<kSlots>& barriers,
                                          int chunk_columns, int columns)
      : ring_(ring),
        barriers_(barriers),
        chunk_columns_(chunk_columns),
        columns_(columns),
        in_flight_(min(kSlots, kRingBytesInFlight / (2 * chunk_bytes()))) {}

  // The next slot: chunk `v` of one row and chunk `w` of another.
  __device__ __forceinline__ void send(const x_t* row, int v, const x_t* other_row, int w) {
    barriers_.empty[place_.slot].wait(place_.parity ^ 1);
    if (sent_ >= in_flight_) {
      const RingPlace<kSlots> earlier = place_.ahead(kSlots - in_flight_);
      barriers_.full[earlier.slot].wait(earlier.parity ^ 1);
    }
    sent_ = min(sent_ + 1, in_flight_);
    MBarrier& full = barriers_.full[place_.slot];
    full.arrive_expecting(bytes(v) + bytes(w));
    unsigned char* const slot = ring_ + place_.slot * 2 * chunk_bytes();
    if (bytes(v) > 0) full.copy(slot, row + v * chunk_columns_, bytes(v));
    if (bytes(w) > 0) full.copy(slot + chunk_bytes(), other_row + w * chunk_columns_, bytes(w));
    place_ = place_.ahead(1);
  }

 private:
  __device__ __forceinline__ int chunk_bytes() const {
    return chunk_columns_ * static_cast<int>(sizeof(x_t));
  }
  __device__ __forceinline__ int bytes(int v) const {
    const int left = columns_ - v * chunk_columns_;
    return max(0, min(chunk_columns_, left)) * static_cast<int>(sizeof(x_t));
  }

  unsigned char* const ring_;
  RingBarriers<kSlots>& barriers_;
  const int chunk_columns_;
  const int columns_;
  const int in_flight_;  // slots
  RingPlace<kSlots> place_;
  int sent_ = 0;
};

}  // namespace my_ops
