// How the operators of this room see a tensor [..., K]: rows at one distance, dense rows or, in a
// transposed matrix, dense columns. Needs no torch.
#pragma once

#include <cstdint>

namespace my_ops {

struct Fp4Rows {
  int64_t rows;
  int64_t K;
  int64_t row_stride;    // of the high-precision side, in elements
  int64_t k_stride = 1;  // of the elements of a row; if not 1, row_stride is 1
};

// Dense rows of whole blocks are one long row: no tails, no row arithmetic.
inline Fp4Rows fp4_collapse(Fp4Rows x, int64_t block) {
  if (x.k_stride == 1 && x.row_stride == x.K && x.K % block == 0)
    return {1, x.rows * x.K, x.rows * x.K};
  return x;
}

}  // namespace my_ops
