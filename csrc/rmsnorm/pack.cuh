// 16 bytes of a row as they move: four words, in registers or shared memory. Device only, needs no
// torch.
//
// A chunk that stays in registers is four words and not an array of elements: the compiler gives
// each 16-bit element a register, and permutes them whenever the chunk moves.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "rmsnorm/chunk.cuh"

namespace my_ops {

using Pack = uint4;

template <typename x_t>
struct PackWord;  // the two elements in a word

template <>
struct PackWord<__nv_bfloat16> {
  __device__ __forceinline__ static float2 widen(unsigned word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
  }
  __device__ __forceinline__ static unsigned narrow(float2 values) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values.x, values.y);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
};
template <>
struct PackWord<__half> {
  __device__ __forceinline__ static float2 widen(unsigned word) {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
  __device__ __forceinline__ static unsigned narrow(float2 values) {
    const __half2 pair = __floats2half2_rn(values.x, values.y);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
};

template <typename x_t>
__device__ __forceinline__ void widen_pack(const Pack& pack, float (&values)[8]) {
  const unsigned words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = PackWord<x_t>::widen(words[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}
template <typename x_t>
__device__ __forceinline__ void widen_pack(const Pack& pack, float (&values)[4]) {
  values[0] = __uint_as_float(pack.x);
  values[1] = __uint_as_float(pack.y);
  values[2] = __uint_as_float(pack.z);
  values[3] = __uint_as_float(pack.w);
}
template <typename x_t>
__device__ __forceinline__ void widen_pack(const Pack& pack, double (&values)[2]) {
  values[0] = __hiloint2double(static_cast<int>(pack.y), static_cast<int>(pack.x));
  values[1] = __hiloint2double(static_cast<int>(pack.w), static_cast<int>(pack.z));
}

template <typename x_t>
__device__ __forceinline__ Pack narrow_pack(const float (&values)[8]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = PackWord<x_t>::narrow({values[2 * i], values[2 * i + 1]});
  }
  return {words[0], words[1], words[2], words[3]};
}
template <typename x_t>
__device__ __forceinline__ Pack narrow_pack(const float (&values)[4]) {
  return {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
          __float_as_uint(values[3])};
}
template <typename x_t>
__device__ __forceinline__ Pack narrow_pack(const double (&values)[2]) {
  return {static_cast<unsigned>(__double2loint(values[0])),
          static_cast<unsigned>(__double2hiint(values[0])),
          static_cast<unsigned>(__double2loint(values[1])),
          static_cast<unsigned>(__double2hiint(values[1]))};
}

// One access of 16 bytes. Through a plain reference the compiler stores four words, where it has
// computed them one by one.
__device__ __forceinline__ void store_pack(void* address, const Pack& pack) {
  __stwb(static_cast<Pack*>(address), pack);
}

// Values that a thread keeps in shared memory for itself.
template <typename acc_t, int N>
__device__ __forceinline__ void store_own(Pack* own, const acc_t (&values)[N]) {
  constexpr int kEach = kChunkBytes / sizeof(acc_t);
#pragma unroll
  for (int i = 0; i < N / kEach; ++i) {
    acc_t part[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) part[j] = values[i * kEach + j];
    own[i] = narrow_pack<acc_t>(part);
  }
}
template <typename acc_t, int N>
__device__ __forceinline__ void load_own(const Pack* own, acc_t (&values)[N]) {
  constexpr int kEach = kChunkBytes / sizeof(acc_t);
#pragma unroll
  for (int i = 0; i < N / kEach; ++i) {
    acc_t part[kEach];
    widen_pack<acc_t>(own[i], part);
#pragma unroll
    for (int j = 0; j < kEach; ++j) values[i * kEach + j] = part[j];
  }
}

// Makes the compiler widen `pack` anew, as keep_packed() does with a chunk.
__device__ __forceinline__ void forget_values(Pack& pack) {
  asm("" : "+r"(pack.x), "+r"(pack.y), "+r"(pack.z), "+r"(pack.w));
}

template <typename scalar_t, int N>
__device__ __forceinline__ Pack pack_of(const scalar_t (&elements)[N]) {
  static_assert(sizeof(elements) == sizeof(Pack));
  Pack pack;
  memcpy(&pack, elements, sizeof(pack));
  return pack;
}

// `pack` with zeros from element `count` on.
template <typename scalar_t>
__device__ __forceinline__ Pack first_elements(const Pack& pack, int count) {
  const int bytes = count * static_cast<int>(sizeof(scalar_t));
  const auto mask = [&](int word) {
    return bytes >= 4 * word + 4 ? 0xFFFFFFFFu : bytes > 4 * word ? 0xFFFFu : 0u;
  };
  return {pack.x & mask(0), pack.y & mask(1), pack.z & mask(2), pack.w & mask(3)};
}

}  // namespace my_ops
