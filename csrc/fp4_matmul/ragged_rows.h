// Rows of a packed weight [N, K] that no vectors of 16 bytes reach. Needs no torch.
//
// Where K is a multiple of 16 only, rows of codes start at multiples of 8 bytes and rows of scales
// anywhere. The stream kernel then copies codes by 8 bytes, and of the scales whole words of 4
// bytes: a row's first scale lies scale_shift bytes behind the start of its first word.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MY_OPS_RAGGED __host__ __device__ __forceinline__
#else
#define MY_OPS_RAGGED inline
#endif

namespace my_ops {

constexpr int kRaggedDepth = 16;  // what divides K

// Whether rows of scales start anywhere. Where not, rows of codes start at multiples of 16 bytes.
constexpr bool rows_are_ragged(int64_t K, int scale_block) { return K % (4 * scale_block) != 0; }

// What a row of scales takes in shared memory beyond its bytes.
constexpr int scale_padding(bool ragged) { return ragged ? 4 : 0; }

// Of a row whose scales start `first_byte` behind those of the first row.
MY_OPS_RAGGED int scale_shift(int64_t first_byte) { return static_cast<int>(first_byte & 3); }

}  // namespace my_ops
