// Device only: the fast twin of common/fp4.h. It gives the same codes and scale bytes for every
// input, with half the instructions: 9 an element, where a copy leaves time for 17. Needs no torch.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "fp4/fp4_block.h"
#include "fp4/fp4_pack.cuh"

namespace my_ops {

// ---- Scales ----

// What a block is encoded with. |x| * |factor| is the scaled magnitude. A negative factor says that
// some may pass 6 and have to be cut, NaN that all codes are 7; an ordinary block's is neither.
struct Fp4BlockFactor {
  uint8_t byte;
  float factor;
};

// E4M3 is converted by an instruction from sm_89 on, by CUDA's header before.
__device__ __forceinline__ uint8_t nvfp4_scale_byte(float block_amax, Nvfp4TensorScale tensor) {
  const float unrounded = __fmul_rn(block_amax, tensor.scale_per_amax);
  return __nv_cvt_float_to_fp8(unrounded, __NV_SATFINITE, __NV_E4M3);
}

// Where the scale is neither saturated nor so small that its grid is coarse, rounding it has moved
// no magnitude beyond 6.75, whose code is 7 without being cut.
__device__ __forceinline__ float nvfp4_factor(uint8_t byte, Nvfp4TensorScale tensor) {
  constexpr uint8_t kSmallest = 0x04, kSaturated = 0x7E;
  const float block_scale = __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
  const float reciprocal = fminf(__frcp_rn(__fmul_rn(block_scale, tensor.global)), kFloat32Max);
  const float multiplier = byte == 0 ? 0.0f : reciprocal;
  const bool stays_below_7 = byte >= kSmallest && byte < kSaturated;
  const float factor = stays_below_7 ? multiplier : -multiplier;
  return byte == kE4M3NaN ? bits_float(0x7FC00000u) : factor;
}

__device__ __forceinline__ Fp4BlockFactor nvfp4_block_factor(float block_amax,
                                                             Nvfp4TensorScale tensor) {
  const uint8_t byte = nvfp4_scale_byte(block_amax, tensor);
  return {byte, nvfp4_factor(byte, tensor)};
}

__device__ __forceinline__ Fp4BlockFactor mxfp4_block_factor(float block_amax, Fp4ScaleMode mode) {
  const Fp4BlockScale scale = mxfp4_block_scale(block_amax, mode);
  return {scale.byte, scale.is_nan ? bits_float(0x7FC00000u) : scale.multiplier};
}

template <Fp4Format kFormat>
__device__ __forceinline__ Fp4BlockFactor fp4_block_factor(float block_amax,
                                                           Nvfp4TensorScale tensor,
                                                           Fp4ScaleMode mode) {
  if constexpr (kFormat == Fp4Format::nvfp4) return nvfp4_block_factor(block_amax, tensor);
  return mxfp4_block_factor(block_amax, mode);
}

// ---- Codes ----

template <uint32_t kSelector>
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b) {
  uint32_t result;  // __byte_perm ignores the selector bits that spread a byte's sign over it
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "n"(kSelector));
  return result;
}

// Eight magnitudes v[e] to codes, the first in the lowest nibble; add(e, c) is v[e] + c rounded to
// a float32. A code is the smallest of three lines, each rounded to an integer: 2 v for v up to 2,
// v + 2 up to 4, v / 2 + 4 above. Adding 1.5 * 2^22, 2^23 or 2^24 rounds v to a multiple of 1/2, 1
// or 2 in the adder, to even in a tie as the codes want it, and leaves the integer in the low bits
// of the sum. So two elements fit into a register and share the minimum.
template <bool kCut, typename Add>
__device__ __forceinline__ uint32_t e2m1_codes(Add add) {
  uint32_t codes = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const auto line = [&](float constant) {
      return permute_bytes<0x5410>(__float_as_uint(add(e, constant)),
                                   __float_as_uint(add(e + 4, constant)));
    };
    uint32_t two = __vimin3_u16x2(line(6291456.0f), line(12582914.0f), line(25165832.0f));
    if constexpr (kCut) two = __vminu2(two, 0x00070007u);
    codes += two << (4 * e);
  }
  return codes;
}

// Puts the signs of the eight elements into the third bit of their nibbles. The selectors spread
// the sign of the byte that holds it; `even` and `odd` are the elements of the low and high
// nibbles.
template <typename scalar_t>
__device__ __forceinline__ uint32_t with_signs(uint32_t codes, const Fp4Eight<scalar_t>& x) {
  const uint32_t(&words)[2 * sizeof(scalar_t)] = x.words;
  uint32_t even, odd;
  if constexpr (sizeof(scalar_t) == 2) {
    const uint32_t first = permute_bytes<0xFBD9>(words[0], words[1]);  // elements 0, 2, 1, 3
    const uint32_t last = permute_bytes<0xFBD9>(words[2], words[3]);
    even = permute_bytes<0x5410>(first, last);
    odd = permute_bytes<0x7632>(first, last);
  } else {
    even = permute_bytes<0x5410>(permute_bytes<0x00FB>(words[0], words[2]),
                                 permute_bytes<0x00FB>(words[4], words[6]));
    odd = permute_bytes<0x5410>(permute_bytes<0x00FB>(words[1], words[3]),
                                permute_bytes<0x00FB>(words[5], words[7]));
  }
  return codes | (even & 0x08080808u) | (odd & 0x80808080u);
}

// Eight codes of 16-bit elements for MXFP4. Scaled by a power of two they keep their few bits, so
// the lines of e2m1_codes fit packed arithmetic: a fused 16-bit operation rounds once, to a
// multiple of 1/2, 1 or 2, where its constant has ulps of that size. This saves four instructions
// an element.
template <typename scalar_t>
__device__ __forceinline__ uint32_t mxfp4_codes(const Fp4Eight<scalar_t>& x, float factor) {
  constexpr bool kHalf = std::is_same<scalar_t, __half>::value;
  // 1.5 * 2^9 or 1.5 * 2^6, whose ulp is 1/2, in both halves; and a one in the exponent of both.
  constexpr uint32_t kBase = kHalf ? 0x62006200u : 0x42C042C0u;
  constexpr uint32_t kExponent = kHalf ? 0x04000400u : 0x00800080u;
  // The largest power of two in float16; blocks of less than 2^-13 need two factors.
  constexpr float kLargest = 32768.0f;
  const auto pair_of = [](float f) {
    if constexpr (kHalf) {
      return __float2half2_rn(f);
    } else {
      return __float2bfloat162_rn(f);
    }
  };
  const auto scale = pair_of(kHalf ? fminf(factor, kLargest) : factor);
  const auto more = pair_of(fminf(fmaxf(factor / kLargest, 1.0f), kLargest));
  uint32_t two[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    auto y = __habs2(as_pair<scalar_t>(x.words[w]));
    if constexpr (kHalf) y = __hmul2(y, more);
    const auto line = [&](uint32_t constant) {
      const auto sum = __hfma2(y, scale, as_pair<scalar_t>(constant));
      uint32_t bits;
      memcpy(&bits, &sum, sizeof bits);
      return bits;
    };
    const uint32_t line_2 = line(kBase + kExponent + 0x00020002u);
    const uint32_t line_4 = line(kBase + 2 * kExponent + 0x00040004u);
    two[w] = __viaddmin_u16x2(line_2, 0x00010000u - kExponent, line(kBase));
    two[w] = __viaddmin_u16x2(line_4, 0x00010000u - 2 * kExponent, two[w]);
    two[w] = __vminu2(two[w], kBase + 0x00070007u) & 0x00070007u;
  }
  const uint32_t first = two[0] | two[1] << 8, last = two[2] | two[3] << 8;
  return permute_bytes<0x5410>(first, last) | permute_bytes<0x7632>(first, last) << 4;
}

// Eight codes, rounded to nearest. MXFP4's factor is a power of two, so its product is exact and
// may be fused with the addition; NVFP4's is rounded first. kOrdinary, of NVFP4: the factor is
// known to be an ordinary block's.
template <Fp4Format kFormat, bool kOrdinary = false, typename scalar_t>
__device__ __forceinline__ uint32_t fp4_encode8(const Fp4Eight<scalar_t>& x, float factor) {
  float v[8];
  to_floats(x, v);
  if constexpr (kFormat == Fp4Format::mxfp4 && sizeof(scalar_t) == 2) {
    const uint32_t codes = with_signs(mxfp4_codes(x, factor), x);
    return factor != factor ? kEightCodes7 : codes;
  } else if constexpr (kFormat == Fp4Format::mxfp4) {
    const auto add = [&](int e, float c) { return __fmaf_rn(fabsf(v[e]), factor, c); };
    const uint32_t codes = with_signs(e2m1_codes</*kCut=*/true>(add), x);
    return factor != factor ? kEightCodes7 : codes;
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = __fmul_rn(fabsf(v[e]), fabsf(factor));
    // A branch: to cut every element of every block would add one instruction in ten.
    if (!kOrdinary && !(factor >= 0.0f)) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = fminf(v[e], kE2M1Max);
      if (factor != factor) return kEightCodes7;
    }
    const auto add = [&](int e, float c) { return __fadd_rn(v[e], c); };
    return with_signs(e2m1_codes</*kCut=*/false>(add), x);
  }
}

// Eight codes, rounded stochastically: e2m1_encode_stochastic of each, with byte e of the words.
// The power of two p below the magnitude (1 at least) is twice its step, times `byte` / 512.
template <typename scalar_t>
__device__ __forceinline__ uint32_t fp4_encode8_stochastic(const Fp4Eight<scalar_t>& x,
                                                           float factor,
                                                           const uint32_t (&random_words)[2]) {
  float t[8];
  to_floats(x, t);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float v = fminf(__fmul_rn(fabsf(t[e]), fabsf(factor)), kE2M1Max);
    const float p = __uint_as_float(__float_as_uint(fmaxf(v, 1.0f)) & 0x7F800000u);
    const float random_byte = static_cast<float>((random_words[e / 4] >> (8 * (e % 4))) & 0xFFu);
    t[e] = __fmaf_rn(__fmul_rn(random_byte, 0x1p-9f), p, v);
  }
  const auto add = [&](int e, float c) { return __fadd_rz(t[e], c); };
  const uint32_t codes = with_signs(e2m1_codes</*kCut=*/false>(add), x);
  return factor != factor ? kEightCodes7 : codes;
}

}  // namespace my_ops
