// A row in the registers of the threads that share it, loaded ahead. Device only, needs no torch.
//
// `width` neighbouring threads own neighbouring chunks: thread t has chunks t, t + width, ... of
// them. Those that begin within a pack are loaded by words and shifted into place.
#pragma once

#include <cstdint>

#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/pack.cuh"
#include "rmsnorm/row_layout.h"

namespace my_ops {

// Where a row starts; `kEven`: the rows are known to be evenly spaced. The general case divides,
// for which lanes that own rows have no registers left.
template <bool kEven>
__device__ __forceinline__ int64_t row_offset(const RowLayout& layout, int64_t row) {
  return kEven ? row * layout.strides[0] : layout.offset(row);
}

template <typename x_t, int kVectors, Rows kRows>
class RowRegisters {
  static constexpr int N = kChunkElements<x_t>;
  static constexpr bool kAligned = kLoadsPacks<kRows>;
  static constexpr bool kHalves = sizeof(x_t) < sizeof(unsigned);  // two elements to a word

 public:
  Pack packs[kVectors] = {};  // zeros where there is no chunk

  __device__ __forceinline__ RowRegisters(const x_t* data, const RowLayout& layout, int64_t rows,
                                          int64_t H, const OwnedColumns& owned, int thread,
                                          int width)
      : data_(data), layout_(layout), rows_(rows), owned_(owned), thread_(thread), width_(width) {
    if constexpr (!kAligned) end_ = data + layout.offset(rows - 1) + H;
  }

  // The row that load() is for from here on.
  __device__ __forceinline__ void begin(int64_t row) {
    constexpr bool kEven = kRows == Rows::even || kRows == Rows::in_step;
    first_ = data_ + row_offset<kEven>(layout_, row) + owned_.first;
    const bool exists = row < rows_;
    if constexpr (kAligned) {
      chunks_ = exists ? owned_.chunks : 0;
      // Of rows shorter than a pack not the last one alone.
      at_end_ = exists && (rows_ - 1 - row) * layout_.strides[0] < N - 1;
      if (kRows == Rows::in_step && at_end_) chunks_ = owned_.columns / N;
    } else {
      const unsigned bytes = reinterpret_cast<std::uintptr_t>(first_) % sizeof(unsigned);
      shift_bits_ = bytes * 8;
      first_ -= bytes / sizeof(x_t);
      if constexpr (kHasEdges<kRows>) {
        first_word_ = static_cast<int>(bytes + owned_.begin * sizeof(x_t)) / 4;
      }
      words_ = exists ? (static_cast<int>(bytes + owned_.columns * sizeof(x_t)) + 3) / 4 : 0;
      const int64_t to_end = (end_ - first_) * static_cast<int64_t>(sizeof(x_t)) / 4;
      whole_words_ = static_cast<int>(min(to_end, int64_t(words_)));
    }
    first_ += thread_ * N;
  }

  // Once for every chunk of a row, in turn.
  __device__ __forceinline__ void load(int v) {
    if constexpr (kAligned) {
      const x_t* address = first_ + v * width_ * N;
      if (v * width_ + thread_ < chunks_) packs[v] = *reinterpret_cast<const Pack*>(address);
    } else {
      load_word(v, 0, packs[v].x);
      load_word(v, 1, packs[v].y);
      load_word(v, 2, packs[v].z);
      load_word(v, 3, packs[v].w);
      if (kHalves && v == kVectors - 1 && thread_ == width_ - 1) load_word(v, 4, beyond_);
    }
  }

  // After the loads of a row and before its use. All threads of a warp take part.
  __device__ __forceinline__ void realign() {
    if constexpr (kRows == Rows::in_step) load_tail(packs);
    if constexpr (!kAligned) {
      if constexpr (kHalves) {
        if (whole_words_ < words_) {
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            unsigned beyond = beyond_;
            load_half_word(v, packs[v], beyond);
            if (v + 1 == kVectors) beyond_ = beyond;
          }
        }
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          // The word after this chunk is the first of the next thread's.
          unsigned beyond = packs[v].x;
          if (v + 1 < kVectors && thread_ == 0) beyond = packs[min(v + 1, kVectors - 1)].x;
          beyond = __shfl_sync(0xffffffffu, beyond, threadIdx.x + 1, width_);
          if (v + 1 == kVectors && thread_ == width_ - 1) beyond = beyond_;
          packs[v] = shifted(packs[v], beyond);
        }
      }
      if constexpr (!kHasEdges<kRows>) clear_beyond_row();
    }
  }

  // The chunk in which a row ends, where it need not be a whole pack of the tensor's memory.
  __device__ __forceinline__ void load_tail(Pack (&packs)[kVectors]) const {
    if (!at_end_ || chunks_ == owned_.chunks || chunks_ % width_ != thread_) return;
    const x_t* address = first_ + (chunks_ - thread_) * N;
    x_t elements[N] = {};
#pragma unroll
    for (int j = 0; j + 1 < N; ++j) {
      if (j < owned_.columns % N) elements[j] = address[j];
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v * width_ + thread_ == chunks_) packs[v] = pack_of(elements);
    }
  }

  // One chunk, at once, whatever the others hold. Anything may follow the end of the row.
  __device__ __forceinline__ Pack load_one(int v) {
    Pack pack = {};
    if constexpr (kAligned) {
      const x_t* address = first_ + v * width_ * N;
      if (v * width_ + thread_ < chunks_) pack = *reinterpret_cast<const Pack*>(address);
    } else {
      unsigned beyond = 0;
      load_word(v, 0, pack.x);
      load_word(v, 1, pack.y);
      load_word(v, 2, pack.z);
      load_word(v, 3, pack.w);
      if constexpr (kHalves) {
        load_word(v, 4, beyond);
        if (whole_words_ < words_) load_half_word(v, pack, beyond);
        pack = shifted(pack, beyond);
      }
    }
    return pack;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) packs[v] = {};
  }

 private:
  __device__ __forceinline__ void load_word(int v, int word, unsigned& value) const {
    const int index = (v * width_ + thread_) * 4 + word;
    if (index < whole_words_ && (!kHasEdges<kRows> || index >= first_word_)) {
      value = reinterpret_cast<const unsigned*>(first_ + v * width_ * N)[word];
    }
  }

  // The last element of a tensor, where it is half a word and this chunk's.
  __device__ __forceinline__ void load_half_word(int v, Pack& pack, unsigned& beyond) const {
    const int word = whole_words_ - (v * width_ + thread_) * 4;
    if (word < 0 || word > 4) return;
    const auto* words = reinterpret_cast<const unsigned*>(first_ + v * width_ * N);
    const unsigned half = *reinterpret_cast<const unsigned short*>(words + word);
    if (word == 0) pack.x = half;
    if (word == 1) pack.y = half;
    if (word == 2) pack.z = half;
    if (word == 3) pack.w = half;
    if (word == 4) beyond = half;
  }

  __device__ __forceinline__ Pack shifted(const Pack& pack, unsigned beyond) const {
    return {
        __funnelshift_r(pack.x, pack.y, shift_bits_), __funnelshift_r(pack.y, pack.z, shift_bits_),
        __funnelshift_r(pack.z, pack.w, shift_bits_), __funnelshift_r(pack.w, beyond, shift_bits_)};
  }

  // What came with the last chunk, or with the word after it, and belongs to others.
  __device__ __forceinline__ void clear_beyond_row() {
    const int last = owned_.columns / N;
    if (last % width_ != thread_) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v * width_ + thread_ == last) {
        packs[v] = first_elements<x_t>(packs[v], owned_.columns % N);
      }
    }
  }

  const x_t* const data_;
  const RowLayout& layout_;
  const int64_t rows_;
  const OwnedColumns& owned_;
  const int thread_;
  const int width_;
  const x_t* end_;
  const x_t* first_;
  int chunks_;
  bool at_end_;      // its last pack may reach beyond the tensor
  int first_word_;   // in which the row begins
  int words_;        // from the one in which the row begins to that in which it ends
  int whole_words_;  // less that in which the tensor ends, where it is half a word
  unsigned shift_bits_;
  unsigned beyond_ = 0;  // the word after the last thread's last chunk
};

}  // namespace my_ops
