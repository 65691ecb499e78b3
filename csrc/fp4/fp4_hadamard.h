// The 16-point Hadamard transform: x becomes x diag(s) H / 4, with Sylvester's matrix H and fixed
// signs s. It is orthogonal, so it cancels in the product of two rows. Host and device, needs no
// torch.
#pragma once

#include <cstdint>

#include "common/fp4.h"

namespace my_ops {

constexpr int kHadamardPoints = 16;

// Bit i: whether element i is negated. Any signs will do that both factors of a product share.
constexpr uint32_t kHadamardNegated = 0xD7E8;

// In place. Divided by 4 first, so that sums overflow only where x exceeds a quarter of the largest
// float. Every round adds and subtracts neighbours, and puts the sums into the first half, the
// differences into the second: the next round's neighbours were twice as far apart in x. So all
// rounds are the same steps, as vector units want them.
MY_OPS_FP4 void hadamard_transform(float (&x)[kHadamardPoints]) {
  constexpr int kHalf = kHadamardPoints / 2;
  for (int i = 0; i < kHadamardPoints; ++i) {
    x[i] = mul_rn(x[i], kHadamardNegated >> i & 1 ? -0.25f : 0.25f);
  }
  for (int round = 0; round < 4; ++round) {
    float sums[kHalf], differences[kHalf];
    for (int i = 0; i < kHalf; ++i) {
      sums[i] = add_rn(x[2 * i], x[2 * i + 1]);
      differences[i] = add_rn(x[2 * i], -x[2 * i + 1]);
    }
    for (int i = 0; i < kHalf; ++i) {
      x[i] = sums[i];
      x[i + kHalf] = differences[i];
    }
  }
}

}  // namespace my_ops
