// How a block of the gemv kernel gets its part of a weight whose rows begin anywhere. Device only,
// sm_90a, needs no torch.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/shared_words.cuh"

namespace my_ops {

// Bytes that come to shared memory in whole units of 16, with what else lies in the first and the
// last. Of a unit that the tensor has only a part of, finish() copies that part.
class GemvStretch {
 public:
  __device__ __forceinline__ GemvStretch(const uint8_t* begin, int bytes, const uint8_t* all_end,
                                         uint32_t shared)
      : phase_(static_cast<int>(reinterpret_cast<uintptr_t>(begin) % 16)),
        end_(phase_ + bytes),
        from_(begin - phase_),
        whole_(static_cast<int>(min(int64_t{(end_ + 15) / 16 * 16}, (all_end - from_) / 16 * 16))),
        shared_(shared) {}

  // The shared address of the first byte, and the bytes of all whole units.
  __device__ __forceinline__ uint32_t begin() const { return shared_ + phase_; }
  __device__ __forceinline__ int whole() const { return whole_; }

  __device__ __forceinline__ void copy(uint32_t barrier) const {
    if (whole_ > 0) sm90::bulk_copy(shared_, from_, whole_, barrier);
  }
  __device__ __forceinline__ void prefetch() const {
    if (whole_ > 0) prefetch_to_l2(from_, whole_);
  }
  __device__ __forceinline__ void finish() const {
    const int at = whole_ + static_cast<int>(threadIdx.x);
    if (threadIdx.x < 16 && at < end_) store_shared1(shared_ + at, from_[at]);
  }

 private:
  int phase_, end_;
  const uint8_t* from_;
  int whole_;
  uint32_t shared_;
};

}  // namespace my_ops
