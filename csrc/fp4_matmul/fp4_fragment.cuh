// Eight FP4 codes of one weight row as parts of the tensor cores' 16-bit operand A. Device only,
// needs no torch.
//
// The order of the products inside a sum is free, so a lane decodes the 32-bit word that it loaded
// where it is: pair j holds elements j and j + 4 of the word, which one shift moves together. x is
// brought into the same order once (pair_order). A pair is code * block scale, exact in 16 bits,
// times a power of two that the float32 sum gives back:
//   float16   the magnitude bits on the border of exponent and fraction mean 2^-14 of the code; an
//             E4M3 scale on top needs no more than float16's last subnormal bit, 2^-24
//   bfloat16  there they mean 2^-126, and the scale brings 2^119 (E4M3) or 2^121 (E8M0) with it
// E8M0 reaches beyond 16 bits: see fp4_e8m0.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "common/fp4.h"

namespace my_ops {

__device__ __forceinline__ uint32_t pair_of(uint16_t bits) { return bits * 0x00010001u; }

__device__ __forceinline__ uint32_t pack_pair(__half, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint32_t pack_pair(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint32_t multiply_pairs(__half, uint32_t x, uint32_t y) {
  const __half2 product = __hmul2(reinterpret_cast<__half2&>(x), reinterpret_cast<__half2&>(y));
  return reinterpret_cast<const uint32_t&>(product);
}

__device__ __forceinline__ uint32_t multiply_pairs(__nv_bfloat16, uint32_t x, uint32_t y) {
  const __nv_bfloat162 product =
      __hmul2(reinterpret_cast<__nv_bfloat162&>(x), reinterpret_cast<__nv_bfloat162&>(y));
  return reinterpret_cast<const uint32_t&>(product);
}

// The codes as numbers: 2^-14 of their value in float16. Odd and even codes are put in the high
// bytes first, four at a time.
__device__ __forceinline__ void code_pairs(__half, uint32_t codes, uint32_t (&pairs)[4]) {
  const uint32_t even = ((codes << 4) & 0x80808080u) | ((codes << 1) & 0x0E0E0E0Eu);
  const uint32_t odd = (codes & 0x80808080u) | ((codes >> 3) & 0x0E0E0E0Eu);
  pairs[0] = __byte_perm(even, 0, 0x2404);
  pairs[1] = __byte_perm(odd, 0, 0x2404);
  pairs[2] = even & 0xFF00FF00u;
  pairs[3] = odd & 0xFF00FF00u;
}

// 2^-126 of their value in bfloat16. A product of a nibble has it at two places, of which one keeps
// the sign and one the magnitude: 13 instructions, of which 9 run at half rate beside the others,
// for 15 with shifts.
__device__ __forceinline__ void code_pairs(__nv_bfloat16, uint32_t codes, uint32_t (&pairs)[4]) {
  constexpr uint32_t kEven = 0x000F000Fu, kOdd = 0x00F000F0u, kKept = 0x81C081C0u;
  const uint32_t upper = codes >> 8;
  pairs[0] = ((codes & kEven) * 0x1040u) & kKept;
  pairs[1] = ((codes & kOdd) * 0x0104u) & kKept;
  pairs[2] = ((upper & kEven) * 0x1040u) & kKept;
  pairs[3] = ((upper & kOdd) * 0x0104u) & kKept;
}

// Eight 16-bit elements of x in the order of the pairs.
__device__ __forceinline__ uint4 pair_order(uint4 x) {
  return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
          __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
}

// Block scales go into the pairs times scale_factor, sums into the result times sum_factor.
struct FragmentScale {
  float scale_factor = 1.0f;
  float sum_factor = 1.0f;
};

// The scale_factor alone. A small global scale goes into bfloat16 pairs, so that sums of large x do
// not overflow before it: as the power of two that amax is near, 2688 times the scale, for kernels
// that cannot wait for its divisions before their first product.
template <typename scalar_t, Fp4Format kFormat>
__device__ __forceinline__ float pair_factor(const float* amax) {
  if constexpr (kFormat == Fp4Format::mxfp4 || std::is_same_v<scalar_t, __half>) return 1.0f;
  int moved = 0;
  if (amax != nullptr && *amax != 0.0f) {
    const int exponent = static_cast<int>(float_bits(*amax) >> 23 & 0xFF) - 127 - 11;
    moved = min(max(exponent, -100), 0);
  }
  return bits_float((127 + 119 + moved) << 23);
}

template <typename scalar_t, Fp4Format kFormat>
__device__ __forceinline__ FragmentScale fragment_scale(const float* amax) {
  constexpr bool kHalf = std::is_same_v<scalar_t, __half>;
  if constexpr (kFormat == Fp4Format::mxfp4) return {1.0f, 0x1p5f};
  const float global = amax == nullptr ? 1.0f : nvfp4_tensor_scale(*amax).global;
  if constexpr (kHalf) return {1.0f, global * 0x1p14f};
  const float factor = pair_factor<scalar_t, kFormat>(amax);
  constexpr uint32_t kBoth = uint32_t{2 * 127 + 126}
                             << 23;  // exponents of factors whose product is 2^126
  return {factor, global * bits_float(kBoth - float_bits(factor))};
}

// The scales of 32 codes: [0] for the first 16, [1] for the others.
template <typename scalar_t>
__device__ __forceinline__ void nvfp4_scale_pairs(uint32_t bytes, float factor,
                                                  uint32_t (&pairs)[2]) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(bytes), __NV_E4M3);
  if constexpr (std::is_same_v<scalar_t, __half>) {
    pairs[0] = pair_of(raw.x);
    pairs[1] = pair_of(raw.y);
  } else {
    const float2 scales = __half22float2(__half2(raw));
    const __nv_bfloat162 low = __float2bfloat162_rn(scales.x * factor);
    const __nv_bfloat162 high = __float2bfloat162_rn(scales.y * factor);
    pairs[0] = reinterpret_cast<const uint32_t&>(low);
    pairs[1] = reinterpret_cast<const uint32_t&>(high);
  }
}

// The two scales of 32 codes as one pair.
template <typename scalar_t>
__device__ __forceinline__ uint32_t nvfp4_scales(uint32_t bytes, float factor) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(bytes), __NV_E4M3);
  if constexpr (std::is_same_v<scalar_t, __half>) return raw.x | raw.y << 16;
  const float2 scales = __half22float2(__half2(raw));
  return pack_pair(__nv_bfloat16{}, scales.x * factor, scales.y * factor);
}

// Each half of a pair as both halves of one, in a form that becomes a part of the multiplication.
__device__ __forceinline__ void halves_twice(uint32_t pair, uint32_t (&twice)[2]) {
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
      "mov.b32 %0, {low, low};\nmov.b32 %1, {high, high};\n}"
      : "=r"(twice[0]), "=r"(twice[1])
      : "r"(pair));
}

// Eight codes times their scale.
template <typename scalar_t>
__device__ __forceinline__ void decode(uint32_t codes, uint32_t scale, uint32_t (&pairs)[4]) {
  code_pairs(scalar_t{}, codes, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = multiply_pairs(scalar_t{}, pairs[i], scale);
}

// A pair of float16 as the exact sum of two pairs of bfloat16.
struct PairPieces {
  uint32_t high;
  uint32_t low;
};

__device__ __forceinline__ PairPieces bf16_pieces(uint32_t pair) {
  const float2 x = __half22float2(reinterpret_cast<const __half2&>(pair));
  const uint32_t first = float_bits(x.x), second = float_bits(x.y);
  const auto rest = [](float value) {
    const float left = value - bits_float(float_bits(value) & 0xFFFF0000u);
    return (float_bits(value) & 0x7F800000u) == 0x7F800000u ? 0u : float_bits(left) >> 16;
  };
  return {first >> 16 | (second & 0xFFFF0000u), rest(x.x) | rest(x.y) << 16};
}

__device__ __forceinline__ void mma(__half, float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma(__nv_bfloat16, float (&sum)[4], uint32_t a0, uint32_t a1,
                                    uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace my_ops
