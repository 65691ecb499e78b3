// Storing rows that start anywhere, in aligned packs. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "common/reduce.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/pack.cuh"

namespace my_ops {

// Stores the chunks of one row, v = 0, 1, ... in order.
template <typename x_t, int kWidth, Rows kRows>
class RowStore {
  static constexpr int N = kChunkElements<x_t>;
  // grad_x is dense and our own.
  static constexpr bool kAligned = kRows != Rows::ragged;

 public:
  // `exists`: false for a row beyond the last, of which nothing is stored.
  __device__ __forceinline__ RowStore(x_t* row, const OwnedColumns& owned, bool exists)
      : first_(row + owned.first), chunks_(exists ? owned.chunks : 0) {
    if constexpr (!kAligned) {
      misalignment_ = static_cast<int>(reinterpret_cast<std::uintptr_t>(first_) % kChunkBytes);
      const int bytes = owned.columns * static_cast<int>(sizeof(x_t));
      bytes_ = exists ? misalignment_ + bytes : 0;
    }
  }

  __device__ __forceinline__ void store(int v, const Pack& pack) {
    const int lane = threadIdx.x % kWidth;
    const int index = v * kWidth + lane;
    if constexpr (kAligned) {
      if (index < chunks_) store_pack(first_ + index * N, pack);
    } else {
      // The 16 bytes that begin `misalignment_` before chunk `index`.
      unsigned char* place = reinterpret_cast<unsigned char*>(first_ + index * N) - misalignment_;
      const Pack moved = moved_back(pack);
      if (index >= chunks_) return;
      const int begin = index == 0 ? misalignment_ : 0;
      const int end = bytes_ - index * kChunkBytes;
      if (begin == 0 && end >= kChunkBytes) {
        store_pack(place, moved);
      } else {
        store_bytes(place, moved, begin, end);
      }
      // After the last chunk what is left of it.
      if (index == chunks_ - 1 && end > kChunkBytes) {
        const Pack rest = straddling_pack(pack, pack, kChunkBytes - misalignment_);
        store_bytes(place + kChunkBytes, rest, 0, end - kChunkBytes);
      }
    }
  }

 private:
  // The last `misalignment_` bytes of the chunk before this one, then the first of this one.
  __device__ __forceinline__ Pack moved_back(const Pack& pack) {
    Pack sent = pack;
    if (threadIdx.x % kWidth == kWidth - 1) sent = last_;
    last_ = pack;
    if constexpr (kWidth < kWarpSize) {
      const Pack low = {word_before(sent.x), word_before(sent.y), word_before(sent.z),
                        word_before(sent.w)};
      return misalignment_ == 0 ? pack : straddling_pack(low, pack, kChunkBytes - misalignment_);
    } else {  // the lanes agree about the row, so a branch for each number of words is cheaper
      if (misalignment_ == 0) return pack;
      if (misalignment_ < 4) return moved_back_by<0>(sent, pack);
      if (misalignment_ < 8) return moved_back_by<1>(sent, pack);
      return misalignment_ < 12 ? moved_back_by<2>(sent, pack) : moved_back_by<3>(sent, pack);
    }
  }

  // By so many whole words and the bits that remain.
  template <int kWords>
  __device__ __forceinline__ Pack moved_back_by(const Pack& sent, const Pack& pack) const {
    constexpr bool kHalves = sizeof(x_t) < sizeof(unsigned);
    constexpr int kFromBefore = kWords + (kHalves ? 1 : 0);
    unsigned words[8] = {sent.x, sent.y, sent.z, sent.w, pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int i = 4 - kFromBefore; i < 4; ++i) words[i] = word_before(words[i]);
    const int bits = misalignment_ % 4 * 8;
    unsigned moved[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      moved[i] = words[4 + i - kWords];
      if constexpr (kHalves) moved[i] = __funnelshift_l(words[3 + i - kWords], moved[i], bits);
    }
    return {moved[0], moved[1], moved[2], moved[3]};
  }

  // What the lane of the chunk before this one sends.
  __device__ __forceinline__ static unsigned word_before(unsigned word) {
    return __shfl_sync(0xffffffffu, word, threadIdx.x - 1, kWidth);
  }

  // Bytes [begin, end) of the 16 at `place`; those around them belong to other rows.
  __device__ __forceinline__ static void store_bytes(unsigned char* place, const Pack& pack,
                                                     int begin, int end) {
    const unsigned words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (begin <= 4 * i && 4 * i + 4 <= end) reinterpret_cast<unsigned*>(place)[i] = words[i];
    }
    if constexpr (sizeof(x_t) < sizeof(unsigned)) {
      const auto store_half = [&](int byte) {
        const unsigned low = byte & 4 ? words[1] : words[0];
        const unsigned high = byte & 4 ? words[3] : words[2];
        const unsigned word = byte & 8 ? high : low;
        *reinterpret_cast<unsigned short*>(place + byte) =
            static_cast<unsigned short>(byte & 2 ? word >> 16 : word);
      };
      if (begin % 4 != 0) store_half(begin);
      if (end < kChunkBytes && end % 4 != 0) store_half(end - 2);
    }
  }

  x_t* const first_;
  const int chunks_;
  int misalignment_;  // of the first chunk, in bytes
  int bytes_;         // to be stored and before the first
  Pack last_ = {};
};

}  // namespace my_ops
