// Device only: eight E2M1 codes at a time to pairs of float16, exactly. Needs no torch.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace my_ops {

// pairs[i] holds elements i and i + 4 of the eight codes in `codes`, which lie 16 bits apart, so
// that one shift and one mask place both. The magnitude bits go to the low exponent and the high
// mantissa bit of float16, where they mean 2^-14 of their E2M1 value (code 1 becomes a subnormal).
__device__ __forceinline__ void e2m1_decode8(uint32_t codes, __half2 (&pairs)[4]) {
  const __half2 rescale = __half2half2(__ushort_as_half(0x7400));  // 2^14
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t sign = (codes << (12 - 4 * i)) & 0x80008000u;
    const uint32_t magnitude = (i < 3 ? codes << (9 - 4 * i) : codes >> (4 * i - 9)) & 0x0E000E00u;
    const uint32_t bits = sign | magnitude;
    __half2 pair;
    memcpy(&pair, &bits, sizeof pair);
    pairs[i] = __hmul2(pair, rescale);
  }
}

}  // namespace my_ops
