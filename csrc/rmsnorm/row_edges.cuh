// The chunks in which rows of any width begin and end. Device only, needs no torch.
#pragma once

#include "common/reduce.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/own_packs.cuh"
#include "rmsnorm/pack.cuh"

namespace my_ops {

// Which elements of a thread's chunks are its own, the same in all of its rows; the others, where
// rows begin and end, belong to other rows. Bits and masks are made once: made anew for every row
// they were a tenth of all instructions.
template <typename x_t, int kWidth, int kVectors, Rows kRows>
class RowEdges {
  static constexpr int N = kChunkElements<x_t>;
  static constexpr int kOwnPacks = own_packs<x_t>(kVectors, kRows);
  static constexpr unsigned kWhole = (1u << N) - 1;
  static constexpr unsigned kLastUsed = 1u << kVectors;
  static_assert(kVectors * N <= 32);

 public:
  // All threads of a warp. `own`: kVectors + 1 packs that are this thread's.
  __device__ __forceinline__ RowEdges(const OwnedColumns& owned, int lane, Pack* own) : own_(own) {
    if constexpr (kHasEdges<kRows>) {
      unsigned edges = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int index = v * kWidth + lane;
        unsigned mine = 0;
#pragma unroll
        for (int j = 0; j < N; ++j) mine |= owned.has(index * N + j) ? 1u << j : 0u;
        elements_ |= mine << (v * N);
        // Of ragged rows a word may come with the chunk after the last.
        const bool edge = mine != kWhole && (mine != 0 || index == owned.chunks);
        edges |= edge ? 1u << v : 0u;
        edges |= v + 1 == kVectors && index <= owned.chunks ? kLastUsed : 0u;
        own_[v] = mask_of(mine);
      }
      edges_ = __reduce_or_sync(0xffffffffu, edges);
    }
  }

  // Whether chunk v of any thread of the warp is at an edge.
  __device__ __forceinline__ bool at(int v) const { return kHasEdges<kRows> && (edges_ >> v & 1); }

  // False where no thread of the warp has a chunk v. Asked for the last v only, which is missing
  // most often: 255 columns gain 9 % by that, 769 lose 3.
  __device__ __forceinline__ bool used(int v) const {
    return !kHasEdges<kRows> || v + 1 < kVectors || (edges_ & kLastUsed);
  }

  // The elements of chunk v that are this thread's.
  __device__ __forceinline__ unsigned elements(int v) const {
    return elements_ >> (v * N) & kWhole;
  }
  __device__ __forceinline__ bool whole(int v) const { return elements(v) == kWhole; }

  // Zeros in place of what belongs to others.
  __device__ __forceinline__ void clear_others(Pack (&x)[kVectors], Pack (&grad)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!at(v)) continue;
      const Pack mine = own_[v];
      x[v] = {x[v].x & mine.x, x[v].y & mine.y, x[v].z & mine.z, x[v].w & mine.w};
      grad[v] = {grad[v].x & mine.x, grad[v].y & mine.y, grad[v].z & mine.z, grad[v].w & mine.w};
    }
  }

  // Where a row's first and last pack wait for what the rows beside it have of them: in the places
  // of the group's first and second lane. `lane`: this thread's, counted from that group's first.
  __device__ __forceinline__ Pack* begin_place(int lane) const { return place_of_lane(-lane); }
  __device__ __forceinline__ Pack* end_place(int lane) const { return place_of_lane(1 - lane); }

  // For a group's first lane: its row's beginning and the end of the row before.
  __device__ __forceinline__ Pack merged(const Pack& begin, const Pack& end) const {
    const Pack mine = own_[0];
    const auto word = [](unsigned mine, unsigned begin, unsigned end) {
      return (begin & mine) | (end & ~mine);
    };
    return {word(mine.x, begin.x, end.x), word(mine.y, begin.y, end.y),
            word(mine.z, begin.z, end.z), word(mine.w, begin.w, end.w)};
  }

 private:
  __device__ __forceinline__ Pack* place_of_lane(int lanes_from_here) const {
    return own_ + kVectors + lanes_from_here * kOwnPacks;
  }
  __device__ __forceinline__ static Pack mask_of(unsigned elements) {
    unsigned words[4] = {};
#pragma unroll
    for (int byte = 0; byte < kChunkBytes; ++byte) {
      const bool mine = elements >> (byte / static_cast<int>(sizeof(x_t))) & 1;
      words[byte / 4] |= mine ? 0xFFu << (byte % 4 * 8) : 0u;
    }
    return {words[0], words[1], words[2], words[3]};
  }

  Pack* const own_;
  unsigned elements_ = 0;
  unsigned edges_ = 0;
};

}  // namespace my_ops
