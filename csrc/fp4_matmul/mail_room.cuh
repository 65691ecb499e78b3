// Memory through which the clusters of the fused kernel that share a tile send each other sums
// (fused_mail.cuh). The kernel that makes the image of x prepares it. Needs no torch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "fp4_matmul/fused_plan.h"

namespace my_ops {

constexpr uint32_t kNothing = ~0u;          // a word that nobody sent: no sum has these bits
constexpr int kPairWords = 4 * kFusedRows;  // of 16 bytes: what threads have of a pair of strips

struct MailRoom {
  uint4* slots;        // for every part of a tile's K: one for each pair of strips
  int64_t slot_words;  // of a part
  int parts;
  int* arrivals;  // behind the slots, for every pair and warp

  __host__ __device__ int64_t arrival_words() const { return slot_words / kPairWords * 2; }
  __host__ __device__ int64_t words_to_prepare() const {
    return (parts - 1) * slot_words + arrival_words();
  }
  int64_t bytes() const { return (parts * slot_words + arrival_words()) * 16; }

  void lies_at(void* memory) {
    slots = static_cast<uint4*>(memory);
    arrivals = reinterpret_cast<int*>(slots + parts * slot_words);
  }

  // Before anything is sent, by so many threads. What the last slots held is never looked at.
  __device__ __forceinline__ void prepare(int64_t thread, int64_t threads) const {
    const int64_t sent = (parts - 1) * slot_words;
    for (int64_t i = thread; i < words_to_prepare(); i += threads) {
      if (i < sent) {
        slots[i] = {kNothing, kNothing, kNothing, kNothing};
      } else {
        reinterpret_cast<uint4*>(arrivals)[i - sent] = {};
      }
    }
  }
};

inline MailRoom mail_room(int64_t tiles, int tokens, int parts) {
  return {nullptr, parts > 1 ? tiles * (tokens / 16) * kPairWords : 0, parts, nullptr};
}

}  // namespace my_ops
