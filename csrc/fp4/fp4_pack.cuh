// Device: a pack of 16 bytes of a row, its elements as float32 and its largest magnitude.
// Needs no torch header.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

#include "common/vec.cuh"

namespace my_ops {

template <typename scalar_t>
using Fp4Pack = Vec<scalar_t, kVecElements<scalar_t>>;

// Elements [k, k + N) of a row; zeros from K on. kAligned: K is a multiple of N and `row` aligned.
template <bool kAligned, typename scalar_t>
__device__ __forceinline__ Fp4Pack<scalar_t> load_pack(const scalar_t* row, int64_t k, int64_t K) {
  constexpr int kN = kVecElements<scalar_t>;
  Fp4Pack<scalar_t> pack{};
  if constexpr (kAligned) {
    if (k < K) pack = *reinterpret_cast<const Fp4Pack<scalar_t>*>(row + k);
  } else {
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      if (k + e < K) pack.elements[e] = row[k + e];
    }
  }
  return pack;
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

// The largest magnitude of a pack, in packed 16-bit arithmetic where that is exact. Without
// kKeepNaN a NaN counts as nothing.
template <bool kKeepNaN>
__device__ __forceinline__ float largest_magnitude(const Fp4Pack<float>& pack) {
  const float* x = pack.elements;
  const float first = larger<kKeepNaN>(fabsf(x[0]), fabsf(x[1]));
  const float second = larger<kKeepNaN>(fabsf(x[2]), fabsf(x[3]));
  return larger<kKeepNaN>(larger<kKeepNaN>(first, second), 0.0f);
}

template <bool kKeepNaN, typename scalar_t>
__device__ __forceinline__ float largest_magnitude(const Fp4Pack<scalar_t>& pack) {
  using Pair = typename std::conditional<std::is_same<scalar_t, __half>::value, __half2,
                                         __nv_bfloat162>::type;
  Pair pairs[4];
  memcpy(pairs, &pack, sizeof pairs);
  Pair largest{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Pair magnitude = __habs2(pairs[i]);
    largest = kKeepNaN ? __hmax2_nan(largest, magnitude) : __hmax2(largest, magnitude);
  }
  if constexpr (std::is_same<scalar_t, __half>::value) {
    return larger<kKeepNaN>(__low2float(largest), __high2float(largest));
  } else {
    const float2 both = __bfloat1622float2(largest);
    return larger<kKeepNaN>(both.x, both.y);
  }
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

// Stores N codes as bytes [k / 2, (k + N) / 2) of a row; from K on nothing, the spare nibble 0.
template <bool kAligned, int N>
__device__ __forceinline__ void store_codes(uint8_t* row, uint32_t codes, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    using Word = typename std::conditional<N == 8, uint32_t, uint16_t>::type;
    *reinterpret_cast<Word*>(row + k / 2) = static_cast<Word>(codes);
  } else {
#pragma unroll
    for (int e = 0; e < N; e += 2) {
      const uint32_t pair = (codes >> (4 * e)) & (k + e + 1 < K ? 0xFFu : 0x0Fu);
      if (k + e < K) row[(k + e) / 2] = static_cast<uint8_t>(pair);
    }
  }
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

}  // namespace my_ops
