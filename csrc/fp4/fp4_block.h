// How one block is quantized: its scale, then its codes. Host and device, needs no torch.
//
// The CPU and CUDA kernels share these functions, so they agree on every byte.
#pragma once

#include "common/fp4.h"

namespace my_ops {

// What one block needs to encode its elements: code = E2M1(x * multiplier), or 7 for all if is_nan.
struct Fp4BlockScale {
  uint8_t byte;
  bool is_nan;
  float multiplier;
};

// block_amax is NaN when an element is. A block whose scale rounds to zero gets zero codes.
MY_OPS_FP4 Fp4BlockScale nvfp4_block_scale(float block_amax, Nvfp4TensorScale tensor) {
  const uint8_t byte = e4m3_encode(mul_rn(block_amax, tensor.scale_per_amax));
  const float decode = mul_rn(e4m3_decode(byte), tensor.global);
  const float multiplier = byte == 0 ? 0.0f : min_of(div_rn(1.0f, decode), kFloat32Max);
  return {byte, byte == kE4M3NaN, multiplier};
}

MY_OPS_FP4 Fp4BlockScale mxfp4_block_scale(float block_amax, Fp4ScaleMode mode) {
  const uint8_t byte = e8m0_encode(block_amax, mode);
  return {byte, byte == kE8M0NaN, bits_float((254u - byte) << 23)};
}

// N codes of x * multiplier, the first in the lowest nibble.
template <int N>
MY_OPS_FP4 uint32_t fp4_encode(const float (&x)[N], Fp4BlockScale scale) {
  uint32_t codes = 0;
  for (int i = 0; i < N; ++i) codes |= e2m1_encode(mul_rn(x[i], scale.multiplier)) << (4 * i);
  return scale.is_nan ? kEightCodes7 : codes;
}

// The same with a random byte for each element: byte i of the little-endian words.
template <int N>
MY_OPS_FP4 uint32_t fp4_encode_stochastic(const float (&x)[N], Fp4BlockScale scale,
                                          const uint32_t (&random_words)[N / 4]) {
  uint32_t codes = 0;
  for (int i = 0; i < N; ++i) {
    const uint32_t random_byte = (random_words[i / 4] >> (8 * (i % 4))) & 0xFFu;
    codes |= e2m1_encode_stochastic(mul_rn(x[i], scale.multiplier), random_byte) << (4 * i);
  }
  return scale.is_nan ? kEightCodes7 : codes;
}

}  // namespace my_ops
