// Device only: CUDA's types for FP4 codes, from a header that does not compile under -Wextra by
// itself. Needs no torch.
//
// The codes of common/fp4.h are those of __nv_fp4_e2m1, two to a __nv_fp4x2_storage_t. CUDA's own
// conversions are not used: on Hopper they are software that goes through double.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <cuda_fp4.h>
#pragma GCC diagnostic pop

#include <cstdint>

static_assert(sizeof(__nv_fp4x2_e2m1) == sizeof(uint8_t), "a byte holds two codes");
