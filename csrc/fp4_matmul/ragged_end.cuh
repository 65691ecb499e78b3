// Where a lane's 32 codes reach behind the end of a row of a ragged weight. Device only, needs no
// torch.
#pragma once

#include <cstdint>

namespace my_ops {

// What lies behind K, of which `left` are left from the lane's first code on, meets zeros of x. But
// a scale could be a NaN there, and the other half of a block of 32 could make an infinity of its
// scale.
template <int kLaneScales>
__device__ __forceinline__ void end_row(int left, uint4& codes, uint32_t& scales) {
  if constexpr (kLaneScales == 1) {
    if (left <= 0) scales = 127;  // 1
    if (left <= 16) codes.z = codes.w = 0;
  } else {
    scales &= left <= 0 ? 0 : (left <= 16 ? 0xFF : 0xFFFF);
  }
}

}  // namespace my_ops
