// Rows in chunks of 16 bytes of x: load, convert, store. Device only, needs no torch.
//
// Element j of chunk c is column c * N + j whatever the alignment, so an unaligned view gives the
// bits of its contiguous copy.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/vec.cuh"

namespace my_ops {

constexpr int kChunkBytes = 16;
template <typename x_t>
constexpr int kChunkElements = kChunkBytes / sizeof(x_t);

// The type that arithmetic is done in, and the type in which the squares of one chunk are summed.
// Sums of chunks are float64, which costs no bandwidth and makes rstd right to its last bit. For
// the eight squares of a chunk of 16-bit numbers float32 is nearly exact.
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

// At most one instruction an element (bfloat16 and float16 lie two to a register).
template <typename acc_t, typename scalar_t, int N>
__device__ __forceinline__ void widen_chunk(const Vec<scalar_t, N>& chunk, acc_t (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = static_cast<acc_t>(chunk.elements[j]);
}
template <int N>
__device__ __forceinline__ void widen_chunk(const Vec<__nv_bfloat16, N>& chunk,
                                            float (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    const unsigned pair = reinterpret_cast<const unsigned*>(&chunk)[j / 2];
    values[j] = __uint_as_float(pair << 16);
    values[j + 1] = __uint_as_float(pair & 0xFFFF0000u);
  }
}
template <int N>
__device__ __forceinline__ void widen_chunk(const Vec<__half, N>& chunk, float (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2*>(&chunk)[j / 2]);
    values[j] = pair.x;
    values[j + 1] = pair.y;
  }
}

template <typename acc_t, typename scalar_t, int N>
__device__ __forceinline__ void narrow_chunk(const acc_t (&values)[N], Vec<scalar_t, N>& chunk) {
#pragma unroll
  for (int j = 0; j < N; ++j) chunk.elements[j] = static_cast<scalar_t>(values[j]);
}
template <int N>
__device__ __forceinline__ void narrow_chunk(const float (&values)[N],
                                             Vec<__nv_bfloat16, N>& chunk) {
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    reinterpret_cast<__nv_bfloat162*>(&chunk)[j / 2] =
        __floats2bfloat162_rn(values[j], values[j + 1]);
  }
}
template <int N>
__device__ __forceinline__ void narrow_chunk(const float (&values)[N], Vec<__half, N>& chunk) {
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    reinterpret_cast<__half2*>(&chunk)[j / 2] = __floats2half2_rn(values[j], values[j + 1]);
  }
}

// Single elements.
__device__ __forceinline__ void widen_chunk(const Vec<__nv_bfloat16, 1>& chunk,
                                            float (&values)[1]) {
  values[0] = __bfloat162float(chunk.elements[0]);
}
__device__ __forceinline__ void widen_chunk(const Vec<__half, 1>& chunk, float (&values)[1]) {
  values[0] = __half2float(chunk.elements[0]);
}
__device__ __forceinline__ void narrow_chunk(const float (&values)[1],
                                             Vec<__nv_bfloat16, 1>& chunk) {
  chunk.elements[0] = __float2bfloat16_rn(values[0]);
}
__device__ __forceinline__ void narrow_chunk(const float (&values)[1], Vec<__half, 1>& chunk) {
  chunk.elements[0] = __float2half_rn(values[0]);
}

template <typename scalar_t>
__device__ __forceinline__ scalar_t narrow(float value) {
  return static_cast<scalar_t>(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half narrow(float value) {
  return __float2half_rn(value);
}
template <typename scalar_t>
__device__ __forceinline__ scalar_t narrow(double value) {
  return static_cast<scalar_t>(value);
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

// Makes the compiler widen `chunk` anew. Without this it keeps the widened values of 16-bit chunks
// from one use to the next: twice the registers, half the rows in flight, and spills.
template <typename scalar_t, int N>
__device__ __forceinline__ void keep_packed(Vec<scalar_t, N>& chunk) {
  if constexpr (sizeof(scalar_t) == 2 && sizeof(chunk) == kChunkBytes) {
    auto* words = reinterpret_cast<unsigned*>(&chunk);
    asm("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
  }
}

}  // namespace my_ops
