// Device only: 16 elements of a row that a lane normalizes and quantizes together. Needs no torch.
#pragma once

#include <cstring>

#include "fp4/fp4_pack.cuh"
#include "rmsnorm/chunk.cuh"

namespace my_ops {

constexpr int kRmsnormFp4Elements = 16;

template <int N>
__device__ __forceinline__ double sum_of(double (&sums)[N]) {
#pragma unroll
  for (int half = N / 2; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// A piece as it is loaded.
template <typename x_t>
struct RmsnormFp4Piece {
  Vec<x_t, kChunkElements<x_t>> chunks[kRmsnormFp4Elements / kChunkElements<x_t>];
};

template <typename x_t>
__device__ __forceinline__ RmsnormFp4Piece<x_t> load_piece(const x_t* x) {
  constexpr int N = kChunkElements<x_t>;
  RmsnormFp4Piece<x_t> piece;
#pragma unroll
  for (int c = 0; c < kRmsnormFp4Elements / N; ++c) {
    piece.chunks[c] = *reinterpret_cast<const Vec<x_t, N>*>(x + c * N);
  }
  return piece;
}

// The elements of a piece as float32; returns the sum of their squares, in which those of a chunk
// (16 bytes of x) are added as rmsnorm_forward_kernel does.
template <typename x_t>
__device__ __forceinline__ double widen_piece(const RmsnormFp4Piece<x_t>& piece,
                                              float (&values)[kRmsnormFp4Elements]) {
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  constexpr int N = kChunkElements<x_t>;
  double sums[kRmsnormFp4Elements / N];
#pragma unroll
  for (int c = 0; c < kRmsnormFp4Elements / N; ++c) {
    float wide[N];
    widen_chunk(piece.chunks[c], wide);
    chunk_sum_t chunk_sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      // Opaque, or the compiler would widen again later to save registers.
      if constexpr (sizeof(x_t) == 2) asm("" : "+f"(wide[j]));
      values[c * N + j] = wide[j];
      chunk_sum += static_cast<chunk_sum_t>(wide[j]) * static_cast<chunk_sum_t>(wide[j]);
    }
    sums[c] = chunk_sum;
  }
  return sum_of(sums);
}

// x * rstd * weight, by the steps of rmsnorm's Normalizer, so that its bits are those of rmsnorm.
// weights[32 * q] are those of elements 4 q on.
template <typename x_t>
__device__ __forceinline__ void normalize_piece(const float (&values)[kRmsnormFp4Elements],
                                                const float4* weights, float rstd, float rstd_rest,
                                                Fp4Eight<x_t> (&halves)[2]) {
  constexpr int N = kChunkElements<x_t>;
#pragma unroll
  for (int c = 0; c < kRmsnormFp4Elements / N; ++c) {
    float y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float4 four = weights[32 * ((c * N + j) / 4)];
      const float w = j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
      const float value = values[c * N + j];
      const float normalized = value * rstd;
      if constexpr (sizeof(x_t) > 2) {
        const float error = fma(value, rstd_rest, fma(value, rstd, -normalized));
        y[j] = fma(normalized, w, error * w);
      } else {
        y[j] = normalized * w;
      }
    }
    Vec<x_t, N> chunk;
    narrow_chunk(y, chunk);
    memcpy(halves[c * N / 8].words + c * N % 8, &chunk, sizeof chunk);
  }
}

// The weight of a piece plus its offset, stored as four quarters, 32 places apart.
template <typename w_t>
__device__ __forceinline__ void store_weights(const w_t* weight, bool exists, float offset,
                                              float4* quarters) {
  constexpr int N = kChunkElements<w_t>;
  RmsnormFp4Piece<w_t> piece = {};
  if (exists) piece = load_piece(weight);
#pragma unroll
  for (int c = 0; c < kRmsnormFp4Elements / N; ++c) {
    float w[N];
    widen_chunk(piece.chunks[c], w);
#pragma unroll
    for (int j = 0; j < N; j += 4) {
      quarters[32 * ((c * N + j) / 4)] = {w[j] + offset, w[j + 1] + offset, w[j + 2] + offset,
                                          w[j + 3] + offset};
    }
  }
}

}  // namespace my_ops
