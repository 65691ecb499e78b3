// How float32 elements become narrow ones, 16 bytes at a time. Device only, needs no torch.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "common/sm90_wgmma.cuh"

namespace my_ops {
namespace tensor_core {

using sm90::Element;

// One 16-byte chunk of each plane from the float32 elements that it holds.
template <Element kElement, int kPlanes>
struct Splitter;

// The upper 16 bits of two float32.
__device__ __forceinline__ uint32_t pack_upper(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// Three times the next 8 bits of the significand, by truncation: exact but for what lies under
// bfloat16's smallest subnormal, and nothing overflows, as rounding would near the largest float.
template <>
struct Splitter<Element::bf16, 3> {
  static constexpr int kElements = 8;
  static __device__ __forceinline__ void split(float (&x)[8], float, uint4 (&planes)[3]) {
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      planes[plane] = {pack_upper(x[0], x[1]), pack_upper(x[2], x[3]), pack_upper(x[4], x[5]),
                       pack_upper(x[6], x[7])};
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] -= __uint_as_float(__float_as_uint(x[e]) & 0xFFFF0000);
    }
  }
};

// The nearest half of the scaled value, and the nearest one of what is left.
template <>
struct Splitter<Element::fp16, 2> {
  static constexpr int kElements = 8;
  static __device__ __forceinline__ void split(float (&x)[8], float scale, uint4 (&planes)[2]) {
    __half2 high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float first = x[2 * e] * scale, second = x[2 * e + 1] * scale;
      high[e] = __floats2half2_rn(first, second);
      low[e] = __floats2half2_rn(first - __low2float(high[e]), second - __high2float(high[e]));
    }
    planes[0] = *reinterpret_cast<const uint4*>(high);
    planes[1] = *reinterpret_cast<const uint4*>(low);
  }
};

// The nearest half of the scaled value alone: TF32's 11 bits, for elements above 2^-29 of the
// largest.
template <>
struct Splitter<Element::fp16, 1> {
  static constexpr int kElements = 8;
  static __device__ __forceinline__ void split(float (&x)[8], float scale, uint4 (&planes)[1]) {
    __half2 pairs[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      pairs[e] = __floats2half2_rn(x[2 * e] * scale, x[2 * e + 1] * scale);
    planes[0] = *reinterpret_cast<const uint4*>(pairs);
  }
};

// The nearest TF32; the instruction would truncate.
template <>
struct Splitter<Element::tf32, 1> {
  static constexpr int kElements = 4;
  static __device__ __forceinline__ void split(float (&x)[4], float, uint4 (&planes)[1]) {
    uint32_t bits[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits[e]) : "f"(x[e]));
    planes[0] = {bits[0], bits[1], bits[2], bits[3]};
  }
};

}  // namespace tensor_core
}  // namespace my_ops
