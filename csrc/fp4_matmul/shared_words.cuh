// Words at shared addresses. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "common/fp4.h"

namespace my_ops {

__device__ __forceinline__ uint2 load_shared8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ __forceinline__ void store_shared16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_shared16(uint32_t address, const float4& v) {
  store_shared16(address,
                 uint4{float_bits(v.x), float_bits(v.y), float_bits(v.z), float_bits(v.w)});
}

__device__ __forceinline__ void store_shared4(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_shared1(uint32_t address, uint32_t byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(byte) : "memory");
}

// From a multiple of 8 bytes, such as rows of a ragged weight (ragged_rows.h) begin at.
__device__ __forceinline__ uint4 load_shared16_by_8(uint32_t address) {
  const uint2 low = load_shared8(address), high = load_shared8(address + 8);
  return {low.x, low.y, high.x, high.y};
}

template <int kBytes, bool kAligned = true>
__device__ __forceinline__ uint32_t load_shared_bytes(uint32_t address) {
  uint32_t bytes;
  if constexpr (kBytes == 4 && kAligned) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bytes) : "r"(address));
  } else if constexpr (kBytes > 1 && !kAligned) {
    bytes = load_shared_bytes<kBytes / 2, false>(address) |
            load_shared_bytes<kBytes / 2, false>(address + kBytes / 2) << 4 * kBytes;
  } else if constexpr (kBytes == 2) {
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(bytes) : "r"(address));
  } else {
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(bytes) : "r"(address));
  }
  return bytes;
}

}  // namespace my_ops
