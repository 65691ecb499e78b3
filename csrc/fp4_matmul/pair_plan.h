// Which products of two dense operands are quantized together: a pure function of the shape, the
// format and the number of SMs. Needs no torch.
#pragma once

#include <cstdint>

#include "fp4_matmul/fused_plan.h"

namespace my_ops {

// Where the fused kernel takes a in the order of its elements, in 16 bits.
inline bool pair_is_quantized_together(int64_t M, int64_t N, int64_t K, int scale_block, int sms) {
  return plan_fused(M, N, K, rows_are_ragged(K, scale_block), sms).takes_map;
}

}  // namespace my_ops
