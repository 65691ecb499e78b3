// Storing rows that start anywhere, in aligned packs. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "common/reduce.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/pack.cuh"

namespace my_ops {

// Stores the chunks of one row, v = 0, 1, ... in order.
template <typename x_t, int kWidth, bool kAligned>
class RowStore {
  static constexpr int N = kChunkElements<x_t>;

 public:
  // `exists`: false for a row beyond the last, of which nothing is stored.
  __device__ __forceinline__ RowStore(x_t* row, const OwnedColumns& owned, bool exists)
      : first_(row + owned.first),
        chunks_(exists ? owned.chunks : 0),
        columns_(exists ? owned.columns : 0) {
    if constexpr (!kAligned) {
      misalignment_ = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(first_) % kChunkBytes);
    }
  }

  __device__ __forceinline__ void store(int v, const Pack& pack) {
    const int lane = threadIdx.x % kWidth;
    const int index = v * kWidth + lane;
    if constexpr (kAligned) {
      if (index < chunks_) store_pack(first_ + index * N, pack);
    } else {
      // The pack that begins `misalignment_` bytes before chunk `index`; after the last chunk what
      // is left of it.
      Pack sent = pack;
      if (lane == kWidth - 1) sent = last_;
      last_ = pack;
      Pack low = pack_of_lane<kWidth>(sent, (lane + kWidth - 1) % kWidth);
      if (misalignment_ == 0) low = pack;
      const Pack aligned = straddling_pack(low, pack, (kChunkBytes - misalignment_) % kChunkBytes);
      const int begin = index * N - static_cast<int>(misalignment_ / sizeof(x_t));
      if (begin >= 0 && begin + N <= columns_) {
        store_pack(first_ + begin, aligned);
      } else if (index < chunks_) {
        store_elements(begin, 0, aligned);
      }
      if (index == chunks_ - 1) store_elements(index * N, begin + N, pack);
    }
  }

 private:
  // Those elements of a pack at column `begin` that lie at or after column `from` and are owned.
  __device__ __forceinline__ void store_elements(int begin, int from, const Pack& pack) {
    const Vec<x_t, N> chunk = *reinterpret_cast<const Vec<x_t, N>*>(&pack);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (begin + j >= from && begin + j < columns_) first_[begin + j] = chunk.elements[j];
    }
  }

  x_t* const first_;
  const int chunks_;
  const int columns_;
  unsigned misalignment_;
  Pack last_ = {};
};

}  // namespace my_ops
