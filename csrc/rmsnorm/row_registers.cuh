// A row in the registers of the threads that share it: load ahead, realign. Device only, needs no
// torch.
//
// `width` neighbouring threads own neighbouring chunks: thread t has chunks t, t + width, ... of
// them. Rows that start at any address are loaded by words and shifted into place. So a misaligned
// view has the bits of its contiguous copy.
#pragma once

#include <cstdint>

#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/pack.cuh"
#include "rmsnorm/row_layout.h"

namespace my_ops {

// Where a row starts; `kEven` where the rows are known to be evenly spaced. The general case
// divides, for which lanes that have rows of their own lack the registers.
template <bool kEven>
__device__ __forceinline__ int64_t row_offset(const RowLayout& layout, int64_t row) {
  return kEven ? row * layout.strides[0] : layout.offset(row);
}

template <typename x_t, int kVectors, bool kAligned, bool kEven>
class RowRegisters {
  static constexpr int N = kChunkElements<x_t>;

 public:
  Pack packs[kVectors] = {};  // zeros where there is no chunk

  __device__ __forceinline__ RowRegisters(const x_t* data, const RowLayout& layout, int64_t rows,
                                          int64_t H, const OwnedColumns& owned, int thread,
                                          int width)
      : data_(data), layout_(layout), rows_(rows), owned_(owned), thread_(thread), width_(width) {
    if constexpr (!kAligned) end_ = data + layout.offset(rows - 1) + H;
  }

  // The row that load() is about from here on.
  __device__ __forceinline__ void begin(int64_t row) {
    first_ = data_ + row_offset<kEven>(layout_, row) + owned_.first;
    chunks_ = row < rows_ ? owned_.chunks : 0;
    if constexpr (!kAligned) {
      const unsigned bytes = reinterpret_cast<std::uintptr_t>(first_) % sizeof(unsigned);
      shift_bits_ = bytes * 8;
      first_ -= bytes / sizeof(x_t);
      words_ = static_cast<int>(
          min((end_ - first_) * static_cast<int64_t>(sizeof(x_t)) / int64_t(sizeof(unsigned)),
              int64_t(chunks_) * 4 + 1));
    }
    first_ += thread_ * N;
  }

  __device__ __forceinline__ void load(int v) { load_into(packs[v], beyond_[v], v); }

  // After the loads of a row and before its use.
  __device__ __forceinline__ void realign() {
    if constexpr (!kAligned) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) packs[v] = realigned(packs[v], beyond_[v], v);
    }
  }

  // One chunk, at once, whatever the others hold.
  __device__ __forceinline__ Pack load_one(int v) {
    Pack pack = {};
    unsigned beyond = 0;
    load_into(pack, beyond, v);
    return realigned(pack, beyond, v);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) packs[v] = {};
  }

 private:
  __device__ __forceinline__ void load_into(Pack& pack, unsigned& beyond, int v) {
    const int index = v * width_ + thread_;
    if (index >= chunks_) return;
    const x_t* address = first_ + v * width_ * N;
    if constexpr (kAligned) {
      pack = *reinterpret_cast<const Pack*>(address);
    } else {
      const auto* words = reinterpret_cast<const unsigned*>(address);
      if (index * 4 + 5 <= words_) {
        pack = {words[0], words[1], words[2], words[3]};
        if constexpr (sizeof(x_t) < sizeof(unsigned)) beyond = words[4];
      } else {
        load_last(pack, beyond, words, words_ - index * 4);
      }
    }
  }

  // The last chunk of a tensor: `count` whole words of it, then perhaps half a word.
  __device__ __forceinline__ void load_last(Pack& pack, unsigned& beyond, const unsigned* words,
                                            int count) {
    const auto word = [&](int i) -> unsigned {
      if (i < count) return words[i];
      const auto* half = reinterpret_cast<const unsigned short*>(words + i);
      const bool exists =
          sizeof(x_t) < sizeof(unsigned) && reinterpret_cast<const x_t*>(half) < end_;
      return exists ? *half : 0;
    };
    pack = {word(0), word(1), word(2), word(3)};
    beyond = word(4);
  }

  __device__ __forceinline__ Pack realigned(const Pack& pack, unsigned beyond, int v) const {
    if constexpr (kAligned) return pack;
    Pack shifted = pack;
    if constexpr (sizeof(x_t) < sizeof(unsigned)) {
      shifted = {__funnelshift_r(pack.x, pack.y, shift_bits_),
                 __funnelshift_r(pack.y, pack.z, shift_bits_),
                 __funnelshift_r(pack.z, pack.w, shift_bits_),
                 __funnelshift_r(pack.w, beyond, shift_bits_)};
    }
    const int columns = owned_.columns - (v * width_ + thread_) * N;
    return columns < N ? first_elements<x_t>(shifted, columns) : shifted;
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
  int words_;  // whole words from the row's first to the end of the tensor
  unsigned shift_bits_;
  unsigned beyond_[kVectors] = {};  // the word after each pack
};

}  // namespace my_ops
