// Rows in chunks of 16 bytes of x: load, convert, store. Device only, needs no torch.
//
// Element j of chunk c is column c * N + j whatever the alignment, so an unaligned view gives the
// bits of its contiguous copy; it only costs one access per element.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/vec.cuh"

namespace my_ops {

constexpr int kChunkBytes = 16;
template <typename x_t>
constexpr int kChunkElements = kChunkBytes / sizeof(x_t);

// The type arithmetic is done in, and the type in which the squares of one chunk are summed; rows
// are summed in float64, which costs no bandwidth and makes rstd right to its last bit. Eight
// squares of 16-bit numbers all but fit float32.
template <typename x_t>
struct Arithmetic {
  using acc_t = float;
  using chunk_sum_t = float;
};
template <>
struct Arithmetic<float> {
  using acc_t = float;
  using chunk_sum_t = double;
};
template <>
struct Arithmetic<double> {
  using acc_t = double;
  using chunk_sum_t = double;
};

template <typename acc_t, typename scalar_t>
__device__ __forceinline__ acc_t widen(scalar_t value) {
  return static_cast<acc_t>(value);
}
template <typename scalar_t, typename acc_t>
__device__ __forceinline__ scalar_t narrow(acc_t value) {
  return static_cast<scalar_t>(value);
}
template <>
__device__ __forceinline__ float widen<float>(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <>
__device__ __forceinline__ float widen<float>(__half value) {
  return __half2float(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half narrow(float value) {
  return __float2half_rn(value);
}

// Columns [column, column + N) of a row of H; zeros beyond its end.
template <bool kAligned, int N, typename scalar_t>
__device__ __forceinline__ Vec<scalar_t, N> load_chunk(const scalar_t* row, int64_t column,
                                                       int64_t H) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const Vec<scalar_t, N>*>(row + column);
  } else {
    Vec<scalar_t, N> chunk;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      chunk.elements[j] = column + j < H ? row[column + j] : scalar_t{};
    }
    return chunk;
  }
}

template <bool kAligned, int N, typename scalar_t>
__device__ __forceinline__ void store_chunk(scalar_t* row, int64_t column, int64_t H,
                                            const Vec<scalar_t, N>& chunk) {
  if constexpr (kAligned) {
    *reinterpret_cast<Vec<scalar_t, N>*>(row + column) = chunk;
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (column + j < H) row[column + j] = chunk.elements[j];
    }
  }
}

// Makes the compiler read `chunk` anew. Without it, it keeps the widened values of 16-bit chunks
// from one use to the next: twice the registers, half the rows in flight, and spills.
template <typename scalar_t, int N>
__device__ __forceinline__ void keep_packed(Vec<scalar_t, N>& chunk) {
  if constexpr (sizeof(scalar_t) == 2) {
    static_assert(sizeof(chunk) == kChunkBytes);
    auto* words = reinterpret_cast<unsigned*>(&chunk);
    asm("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
  }
}

template <typename scalar_t, int N, typename acc_t>
__device__ __forceinline__ Vec<scalar_t, N> narrow_chunk(const acc_t (&values)[N]) {
  Vec<scalar_t, N> chunk;
#pragma unroll
  for (int j = 0; j < N; ++j) chunk.elements[j] = narrow<scalar_t>(values[j]);
  return chunk;
}

}  // namespace my_ops
