// Host side of this room's .cu files: flags as types, and whether rows can be read in packs.
#pragma once

#include <type_traits>

#include "common/cuda_types.cuh"
#include "common/vec.cuh"
#include "fp4/fp4_rows.h"

namespace my_ops {

// Calls function(std::bool_constant).
template <typename Function>
void with_flag(bool flag, Function function) {
  flag ? function(std::true_type{}) : function(std::false_type{});
}

// Whether every row of the high-precision side consists of whole chunks of elements, in aligned
// 16-byte packs. Then the rows of codes, half a byte an element, consist of whole chunks too.
template <typename scalar_t>
bool rows_are_aligned(const scalar_t* data, const Fp4Rows& shape,
                      int chunk = kVecElements<scalar_t>) {
  return aligned_to_vec(data) && shape.K % chunk == 0 &&
         (shape.rows == 1 || shape.row_stride % kVecElements<scalar_t> == 0);
}

}  // namespace my_ops
