// How the operators of this room see a tensor [..., K]: rows at one distance. Needs no torch
// header.
#pragma once

#include <cstdint>

namespace my_ops {

struct Fp4Rows {
  int64_t rows;
  int64_t K;
  int64_t row_stride;  // of the high-precision side, in elements; each row is dense
};

// Dense rows of whole blocks are one long row: no tails, no row arithmetic.
inline Fp4Rows fp4_collapse(Fp4Rows x, int64_t block) {
  if (x.row_stride == x.K && x.K % block == 0) return {1, x.rows * x.K, x.rows * x.K};
  return x;
}

}  // namespace my_ops
