// The scale of one block, from its largest magnitude. Host and device, needs no torch.
//
// MXFP4's is shared by the CPU and CUDA kernels; NVFP4's has a fast twin in fp4_encode.cuh with the
// same bytes.
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

}  // namespace my_ops
