// The FP4 formats NVFP4 and MXFP4: elements, block scales, packing. Host and device, needs no
// torch.
//
// The definition of every rounding. The CPU kernels round here; the CUDA kernels encode by
// fp4/fp4_encode.cuh, which gives the same bytes for every input (tests/test_fp4_bits.py). Every
// step here is one float32 operation rounded to nearest even, subnormals kept: explicit _rn
// intrinsics on the device, -ffp-contract=off on the host. A code holds the bits of __nv_fp4_e2m1,
// a byte two codes with the even element in the low nibble.
//
//   element  E2M1: 0 .5 1 1.5 2 3 4 6 for codes 0-7, the same negated for 8-15
//   NVFP4    16 elements a block, scale E4M3, and one float32 per tensor (its largest magnitude)
//   MXFP4    32 elements a block, scale E8M0: a power of two
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define MY_OPS_FP4 __host__ __device__ __forceinline__
#else
#define MY_OPS_FP4 inline
#endif

namespace my_ops {

enum class Fp4Format { nvfp4, mxfp4 };
enum class Fp4ScaleMode { floor, rceil, ceil, even };

MY_OPS_FP4 constexpr int fp4_block_size(Fp4Format format) {
  return format == Fp4Format::nvfp4 ? 16 : 32;
}

// Host: function(std::integral_constant of the format).
template <typename Function>
auto with_format(Fp4Format format, const Function& function) {
  return format == Fp4Format::nvfp4
             ? function(std::integral_constant<Fp4Format, Fp4Format::nvfp4>{})
             : function(std::integral_constant<Fp4Format, Fp4Format::mxfp4>{});
}

constexpr float kE2M1Max = 6.0f;
constexpr float kE4M3Max = 448.0f;
constexpr float kFloat32Max = 3.402823466e+38f;
constexpr uint8_t kE4M3NaN = 0x7F;
constexpr uint8_t kE8M0NaN = 0xFF;
constexpr uint32_t kEightCodes7 = 0x77777777u;  // what a block with a NaN scale holds

MY_OPS_FP4 uint32_t float_bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

MY_OPS_FP4 float bits_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

#ifdef __CUDA_ARCH__
MY_OPS_FP4 float add_rn(float a, float b) { return __fadd_rn(a, b); }
MY_OPS_FP4 float mul_rn(float a, float b) { return __fmul_rn(a, b); }
MY_OPS_FP4 float div_rn(float a, float b) { return __fdiv_rn(a, b); }
#else
MY_OPS_FP4 float add_rn(float a, float b) { return a + b; }
MY_OPS_FP4 float mul_rn(float a, float b) { return a * b; }
MY_OPS_FP4 float div_rn(float a, float b) { return a / b; }
#endif

MY_OPS_FP4 float min_of(float a, float b) { return a < b ? a : b; }  // b where a is NaN
MY_OPS_FP4 float max_of(float a, float b) { return a > b ? a : b; }

// The same for the bits of magnitudes, taken as signed integers: every vector unit compares those.
MY_OPS_FP4 int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }
MY_OPS_FP4 int32_t max_of(int32_t a, int32_t b) { return a > b ? a : b; }

MY_OPS_FP4 int32_t magnitude_bits(float x) {
  return static_cast<int32_t>(float_bits(x) & 0x7FFFFFFFu);
}
MY_OPS_FP4 bool is_nan_bits(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

// ---- E2M1 elements ----

// Nearest, ties to the even code, saturating, sign of zero kept. x is not NaN.
// A code is the smallest of three lines, each rounded to an integer: 2 |x| for |x| up to 2, |x| + 2
// up to 4, |x| / 2 + 4 above. Adding 1.5 * 2^22, 2^23 or 2^24 rounds |x| to a multiple of 1/2, 1 or
// 2 in the adder, to even in a tie as the codes want it, and leaves the integer in the low bits of
// the sum. All choices are between integers, which compilers put into vector registers.
MY_OPS_FP4 uint32_t e2m1_encode(float x) {
  constexpr int32_t kMaxBits = 0x40C00000;  // 6
  const float y = bits_float(min_of(magnitude_bits(x), kMaxBits));
  const int32_t line_0 = float_bits(add_rn(y, 6291456.0f)) & 0xFFFFu;
  const int32_t line_2 = float_bits(add_rn(y, 12582914.0f)) & 0xFFFFu;
  const int32_t line_4 = float_bits(add_rn(y, 25165832.0f)) & 0xFFFFu;
  const uint32_t code = min_of(min_of(line_0, line_2), line_4);
  return code | ((float_bits(x) >> 28) & 8u);
}

// Stochastic: |x| plus random_byte / 256 of the step at |x|, cut down to the grid. x is not NaN.
MY_OPS_FP4 uint32_t e2m1_encode_stochastic(float x, uint32_t random_byte) {
  const float y = min_of(bits_float(float_bits(x) & 0x7FFFFFFFu), kE2M1Max);
  const float step_over_256 = y < 2.0f ? 0x1p-9f : (y < 4.0f ? 0x1p-8f : 0x1p-7f);
  const float t = add_rn(y, mul_rn(static_cast<float>(random_byte), step_over_256));
  const uint32_t normal = (float_bits(min_of(t, kE2M1Max)) >> 22) - 252u;
  const uint32_t code = t < 1.0f ? (t < 0.5f ? 0u : 1u) : normal;
  return code | ((float_bits(x) >> 28) & 8u);
}

MY_OPS_FP4 float e2m1_decode(uint32_t code) {
  const uint32_t m = code & 7u;
  const uint32_t magnitude = m < 2u ? m * 0x3F000000u : (m + 252u) << 22;
  return bits_float(magnitude | ((code & 8u) << 28));
}

MY_OPS_FP4 uint32_t fp4_code(uint8_t packed, int64_t k) { return (packed >> (4 * (k & 1))) & 15u; }

// ---- Scales ----

// E4M3 of a scale (not negative): nearest even, saturating at 448; NaN becomes 0x7F.
MY_OPS_FP4 uint8_t e4m3_encode(float scale) {
  if (is_nan_bits(float_bits(scale))) return kE4M3NaN;
  const float y = min_of(scale, kE4M3Max);
  // Below 2^-6 the grid is 2^-9, the last place of floats in [2^14, 2^15).
  if (y < 0x1p-6f) return static_cast<uint8_t>(float_bits(add_rn(y, 0x1p14f)));
  const uint32_t bits = float_bits(y);
  const uint32_t rounded = (bits + 0x7FFFFu + ((bits >> 20) & 1u)) >> 20;
  return static_cast<uint8_t>(rounded - ((127 - 7) << 3));
}

MY_OPS_FP4 float e4m3_decode(uint8_t byte) {
  const uint32_t m = byte & 0x7Fu;
  const float subnormal = mul_rn(static_cast<float>(m), 0x1p-9f);
  const float normal = bits_float((m + ((127 - 7) << 3)) << 20);
  const float magnitude = m < 8u ? subnormal : (m == kE4M3NaN ? bits_float(0x7FC00000u) : normal);
  return bits_float(float_bits(magnitude) | (static_cast<uint32_t>(byte & 0x80u) << 24));
}

// The four modes are one integer rule: the exponent of amax, less 2, plus one where the significand
// is over 1.5 (rceil), from 1.75 on (even) or over 1 (ceil). It works on float32 bits: what is
// added to them carries into the exponent just there. A logarithm would be inexact on the CPU and
// on CUDA.
MY_OPS_FP4 uint8_t e8m0_encode(float amax, Fp4ScaleMode mode) {
  const uint32_t carry = mode == Fp4ScaleMode::rceil  ? 0x3FFFFFu
                         : mode == Fp4ScaleMode::even ? 0x200000u
                         : mode == Fp4ScaleMode::ceil ? 0x7FFFFFu
                                                      : 0u;
  const uint32_t bits = float_bits(amax) & 0x7FFFFFFFu;
  if (bits >= 0x7F800000u) return kE8M0NaN;
  const int exponent = static_cast<int>((bits + carry) >> 23) - 2;
  return static_cast<uint8_t>(exponent < 0 ? 0 : exponent);
}

MY_OPS_FP4 float e8m0_decode(uint8_t byte) {
  const uint32_t normal = static_cast<uint32_t>(byte) << 23;
  return bits_float(byte == 0 ? 0x00400000u : (byte == kE8M0NaN ? 0x7FC00000u : normal));
}

// The two numbers that NVFP4 derives from the tensor's amax; one level keeps these defaults.
struct Nvfp4TensorScale {
  float scale_per_amax = 1.0f / 6.0f;  // block amax * this = block scale before rounding
  float global = 1.0f;                 // value = code * (block scale * global)
};

MY_OPS_FP4 Nvfp4TensorScale nvfp4_tensor_scale(float amax) {
  const bool usable = amax != 0.0f && float_bits(amax) != 0x7F800000u;
  const float encode = usable ? min_of(div_rn(kE2M1Max * kE4M3Max, amax), kFloat32Max) : 1.0f;
  return {mul_rn(encode, 1.0f / 6.0f), div_rn(1.0f, encode)};
}

// The factor that turns decoded codes into values: e2m1_decode(code) * this, rounded once.
MY_OPS_FP4 float nvfp4_decode_scale(uint8_t byte, float global) {
  return mul_rn(e4m3_decode(byte), global);
}

}  // namespace my_ops
