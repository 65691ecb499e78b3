// Device only: elements of a row in registers, their values as float32 and their largest magnitude.
// Needs no torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

#include "common/vec.cuh"

namespace my_ops {

template <typename scalar_t>
using Fp4Pack = Vec<scalar_t, kVecElements<scalar_t>>;

// The elements from k on that fill `words`, zeros from K on. kAligned: they lie before K or from K
// on together, and on a 16-byte boundary.
template <bool kAligned, typename scalar_t, int kWords>
__device__ __forceinline__ void load_words(const scalar_t* row, int64_t k, int64_t K,
                                           uint32_t (&words)[kWords]) {
  if constexpr (kAligned) {
    using Pack = Vec<uint32_t, 4>;
#pragma unroll
    for (int p = 0; p < kWords / 4; ++p) {
      const Pack pack = k < K ? reinterpret_cast<const Pack*>(row + k)[p] : Pack{};
      memcpy(words + 4 * p, &pack, sizeof pack);
    }
  } else {
    constexpr int kN = kWords * 4 / sizeof(scalar_t);
    scalar_t elements[kN] = {};
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      if (k + e < K) elements[e] = row[k + e];
    }
    memcpy(words, elements, sizeof elements);
  }
}

template <bool kAligned, typename scalar_t>
__device__ __forceinline__ void store_pack(scalar_t* row, int64_t k, int64_t K,
                                           const Fp4Pack<scalar_t>& pack) {
  constexpr int kN = kVecElements<scalar_t>;
  if constexpr (kAligned) {
    if (k < K) *reinterpret_cast<Fp4Pack<scalar_t>*>(row + k) = pack;
  } else {
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      if (k + e < K) row[k + e] = pack.elements[e];
    }
  }
}

// Two 16-bit elements, for packed arithmetic.
template <typename scalar_t>
using Fp4Pair =
    typename std::conditional<std::is_same<scalar_t, __half>::value, __half2, __nv_bfloat162>::type;

template <typename scalar_t>
__device__ __forceinline__ Fp4Pair<scalar_t> as_pair(uint32_t word) {
  Fp4Pair<scalar_t> pair;
  memcpy(&pair, &word, sizeof pair);
  return pair;
}

__device__ __forceinline__ float2 to_floats(__half2 pair) { return __half22float2(pair); }
// By hand: CUDA's own conversion uses the integer pipe for both elements, which encoding keeps
// busy.
__device__ __forceinline__ float2 to_floats(__nv_bfloat162 pair) {
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
}

// The larger; NaN where kKeepNaN and one is NaN, else the other one.
template <bool kKeepNaN>
__device__ __forceinline__ float larger(float a, float b) {
  if constexpr (kKeepNaN) {
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
  } else {
    return fmaxf(a, b);
  }
}

template <bool kKeepNaN, typename Pair>
__device__ __forceinline__ Pair larger(Pair a, Pair b) {
  return kKeepNaN ? __hmax2_nan(a, b) : __hmax2(a, b);
}

// The largest magnitudes of the elements in some words: of float32 one, of 16-bit elements those of
// the low and of the high halves, in packed arithmetic. Without kKeepNaN a NaN counts as nothing.
template <typename scalar_t, bool kKeepNaN, int kWords>
__device__ __forceinline__ float2 largest_magnitudes(const uint32_t (&words)[kWords]) {
  if constexpr (sizeof(scalar_t) == 4) {
    float largest = 0.0f;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      largest = larger<kKeepNaN>(largest, fabsf(__uint_as_float(words[w])));
    }
    return {largest, largest};
  } else {
    Fp4Pair<scalar_t> largest{};
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      largest = larger<kKeepNaN>(largest, __habs2(as_pair<scalar_t>(words[w])));
    }
    return to_floats(largest);
  }
}

template <typename scalar_t, bool kKeepNaN, int kWords>
__device__ __forceinline__ float largest_magnitude(const uint32_t (&words)[kWords]) {
  const float2 largest = largest_magnitudes<scalar_t, kKeepNaN>(words);
  return larger<kKeepNaN>(largest.x, largest.y);
}

// N codes from bytes [k / 2, (k + N) / 2) of a row; zeros from K on.
template <bool kAligned, int N>
__device__ __forceinline__ uint32_t load_codes(const uint8_t* row, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    using Word = typename std::conditional<N == 8, uint32_t, uint16_t>::type;
    return k < K ? *reinterpret_cast<const Word*>(row + k / 2) : Word{0};
  } else {
    uint32_t codes = 0;
#pragma unroll
    for (int e = 0; e < N; e += 2) {
      if (k + e < K) codes |= static_cast<uint32_t>(row[(k + e) / 2]) << (4 * e);
    }
    return codes;
  }
}

// Stores codes as bytes [k / 2, ...) of a row. kAligned: they lie before K and on a boundary of
// their size; else from K on nothing, and the spare nibble is 0.
template <bool kAligned, int kWords>
__device__ __forceinline__ void store_codes(uint8_t* row, const uint32_t (&codes)[kWords],
                                            int64_t k, int64_t K) {
  if constexpr (kAligned) {
    Vec<uint32_t, kWords> vec;
    memcpy(&vec, codes, sizeof vec);
    *reinterpret_cast<Vec<uint32_t, kWords>*>(row + k / 2) = vec;
  } else {
#pragma unroll
    for (int e = 0; e < 8 * kWords; e += 2) {
      const uint32_t pair = codes[e / 8] >> (4 * (e % 8)) & (k + e + 1 < K ? 0xFFu : 0x0Fu);
      if (k + e < K) row[(k + e) / 2] = static_cast<uint8_t>(pair);
    }
  }
}

// Eight elements, as the words that a load brings.
template <typename scalar_t>
struct Fp4Eight {
  uint32_t words[2 * sizeof(scalar_t)];
};

template <typename scalar_t>
__device__ __forceinline__ void to_floats(const Fp4Eight<scalar_t>& x, float (&y)[8]) {
  if constexpr (sizeof(scalar_t) == 4) {
    memcpy(y, x.words, sizeof y);
  } else {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 both = to_floats(as_pair<scalar_t>(x.words[w]));
      y[2 * w] = both.x;
      y[2 * w + 1] = both.y;
    }
  }
}

}  // namespace my_ops
