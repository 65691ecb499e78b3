// What the FP4 product multiplies: packed FP4 matrices and dense ones. Device only, needs no torch.
//
// An operand is a matrix in memory of which one dimension is contracted: the columns (Major::depth)
// or the rows (Major::outer). fetch() starts the copy of one tile's raw bytes into shared memory,
// decode() turns them into a bf16 tile of the same rows and columns:
//   PackedOperand  code * block scale, exact in bf16: E2M1 x E4M3 has at most 6 significant bits,
//                  E8M0 is a power of two. NVFP4's global scale stays outside, but for its power of
//                  two, which keeps products and sums in the range of the true values.
//   DenseOperand   bf16 as it is; fp16 as the exact sum of two bf16 pieces, fp32 of three. Every
//                  product is then exact, and an fp32 operand costs three products, not accuracy.
//                  (Below 2^-110 the third piece loses bits under 2^-133.)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/fp4.h"
#include "fp4_matmul/raw_tile.cuh"

namespace my_ops {

enum class DenseType { float32, float16, bfloat16 };

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t x, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(x), factor);
  return reinterpret_cast<const uint32_t&>(product);
}

// Eight codes times a scale, as bf16 in the order of the codes. A code's three magnitude bits at
// bf16's bits 6-8 are its value times 2^-126 (0.5 becomes a subnormal); codes n and n + 4 lie 16
// bits apart and are moved together.
__device__ __forceinline__ uint4 decode_codes(uint32_t codes, __nv_bfloat162 scale) {
  constexpr uint32_t kMagnitudes = 0x01C001C0u;
  constexpr uint32_t kSigns = 0x80008000u;
  const __nv_bfloat162 bias = __float2bfloat162_rn(0x1p126f);
  uint32_t pair[4] = {((codes << 6) & kMagnitudes) | ((codes << 12) & kSigns),
                      ((codes << 2) & kMagnitudes) | ((codes << 8) & kSigns),
                      ((codes >> 2) & kMagnitudes) | ((codes << 4) & kSigns),
                      ((codes >> 6) & kMagnitudes) | (codes & kSigns)};
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = multiply_bf16x2(multiply_bf16x2(pair[i], bias), scale);
  return {__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[2], pair[3], 0x5410),
          __byte_perm(pair[0], pair[1], 0x7632), __byte_perm(pair[2], pair[3], 0x7632)};
}

// NVFP4's global scale as power_of_two * rest. The power goes into the bf16 scales, clamped so that
// they stay normal numbers; the rest into the float32 result.
struct SplitScale {
  float power_of_two = 1.0f;
  float rest = 1.0f;
};

__device__ __forceinline__ SplitScale split_global_scale(const float* amax) {
  if (amax == nullptr) return {};
  const float global = nvfp4_tensor_scale(*amax).global;
  const int exponent = static_cast<int>(float_bits(global) >> 23) - 127;
  const int clamped = min(max(exponent, -100), 100);
  return {bits_float((127 + clamped) << 23), global * bits_float((127 - clamped) << 23)};
}

template <Major kMajor_>
struct PackedOperand {
  static constexpr Major kMajor = kMajor_;
  ByteRows codes;
  ByteRows scales;
  const float* amax;  // null: no global scale
  Fp4Format format;

  __host__ __device__ int pieces() const { return 1; }
  __device__ SplitScale global_scale() const { return split_global_scale(amax); }
  __device__ int block_shift() const { return format == Fp4Format::nvfp4 ? 4 : 5; }

  template <typename Shape>
  static constexpr int kScaleBytes = Shape::kCols < 64 ? 4 : Shape::kCols / 16;  // of a tile's row

  template <typename Shape>
  __host__ __device__ int stage_bytes() const {
    return Shape::kRows * (Shape::kCols / 2 + kScaleBytes<Shape>);
  }

  // The scales of a tile begin inside a 4-byte word at times; then the whole word is copied.
  template <typename Shape, int kThreads>
  __device__ void fetch(uint8_t* stage, int64_t row, int64_t col) const {
    fetch_bytes<kThreads, Shape::kRows, Shape::kCols / 2, 16, 1>(stage, codes, row, col / 2);
    fetch_bytes<kThreads, Shape::kRows, kScaleBytes<Shape>, 4, 1>(
        stage + Shape::kRows * (Shape::kCols / 2), scales, row, (col >> block_shift()) & ~3);
  }

  template <typename Shape, int kThreads>
  __device__ void decode(__nv_bfloat16* tile, const uint8_t* stage, int64_t col, int,
                         float power_of_two) const {
    constexpr int kBlocksInRow = Shape::kCols / 16;
    const uint8_t* tile_scales = stage + Shape::kRows * (Shape::kCols / 2);
    const int64_t first_scale = (col >> block_shift()) & ~3;
#pragma unroll
    for (int block = threadIdx.x; block < Shape::kRows * kBlocksInRow; block += kThreads) {
      const int row = block / kBlocksInRow;
      const int in_row = block % kBlocksInRow * 16;
      const int scale_index = static_cast<int>(((col + in_row) >> block_shift()) - first_scale);
      const uint8_t byte = tile_scales[row * kScaleBytes<Shape> + scale_index];
      const float scale =
          format == Fp4Format::nvfp4 ? e4m3_decode(byte) * power_of_two : e8m0_decode(byte);
      const __nv_bfloat162 scale_pair = __float2bfloat162_rn(scale);
      const uint2 words = reinterpret_cast<const uint2*>(stage)[block];
      uint4* values = reinterpret_cast<uint4*>(tile + row * Shape::kPitch + in_row);
      values[0] = decode_codes(words.x, scale_pair);
      values[1] = decode_codes(words.y, scale_pair);
    }
  }
};

// Piece kPiece of x = piece 0 + piece 1 + ..., each the leading bits of what is left, cut off so
// that nothing overflows. Inf and NaN are piece 0 alone.
template <int kPiece>
__device__ __forceinline__ uint32_t bf16_piece(float x) {
  const bool special = (float_bits(x) & 0x7F800000u) == 0x7F800000u;
  if constexpr (kPiece == 0) return x != x ? 0x7FC0u : float_bits(x) >> 16;
  float left = x;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) left -= bits_float(float_bits(left) & 0xFFFF0000u);
  return special ? 0u : float_bits(left) >> 16;
}

template <int kPiece>
__device__ __forceinline__ uint32_t bf16_piece_pair(float low, float high) {
  return bf16_piece<kPiece>(low) | bf16_piece<kPiece>(high) << 16;
}

template <Major kMajor_>
struct DenseOperand {
  static constexpr Major kMajor = kMajor_;
  ByteRows elements;
  DenseType type;

  __host__ __device__ int element_bytes() const { return type == DenseType::float32 ? 4 : 2; }
  __host__ __device__ int pieces() const {
    return type == DenseType::float32 ? 3 : (type == DenseType::float16 ? 2 : 1);
  }
  __device__ SplitScale global_scale() const { return {}; }

  template <typename Shape>
  __host__ __device__ int stage_bytes() const {
    return Shape::kRows * Shape::kCols * element_bytes();
  }

  template <typename Shape, int kThreads>
  __device__ void fetch(uint8_t* stage, int64_t row, int64_t col) const {
    if (type == DenseType::float32) {
      fetch_bytes<kThreads, Shape::kRows, Shape::kCols * 4, 16, 4>(stage, elements, row, col * 4);
    } else {
      fetch_bytes<kThreads, Shape::kRows, Shape::kCols * 2, 16, 2>(stage, elements, row, col * 2);
    }
  }

  template <typename Shape, int kThreads>
  __device__ void decode(__nv_bfloat16* tile, const uint8_t* stage, int64_t, int piece,
                         float) const {
    if (piece == 0) {
      decode_piece<Shape, kThreads, 0>(tile, stage);
    } else if (piece == 1) {
      decode_piece<Shape, kThreads, 1>(tile, stage);
    } else {
      decode_piece<Shape, kThreads, 2>(tile, stage);
    }
  }

 private:
  template <typename Shape, int kThreads, int kPiece>
  __device__ void decode_piece(__nv_bfloat16* tile, const uint8_t* stage) const {
    constexpr int kVectorsInRow = Shape::kCols / 8;
#pragma unroll 2
    for (int vector = threadIdx.x; vector < Shape::kRows * kVectorsInRow; vector += kThreads) {
      const int row = vector / kVectorsInRow;
      *reinterpret_cast<uint4*>(tile + row * Shape::kPitch + vector % kVectorsInRow * 8) =
          vector_piece<kPiece>(stage, vector);
    }
  }

  template <int kPiece>
  __device__ uint4 vector_piece(const uint8_t* stage, int vector) const {
    if (type == DenseType::float32) {
      const float4 low = reinterpret_cast<const float4*>(stage)[2 * vector];
      const float4 high = reinterpret_cast<const float4*>(stage)[2 * vector + 1];
      return {bf16_piece_pair<kPiece>(low.x, low.y), bf16_piece_pair<kPiece>(low.z, low.w),
              bf16_piece_pair<kPiece>(high.x, high.y), bf16_piece_pair<kPiece>(high.z, high.w)};
    }
    const uint4 raw = reinterpret_cast<const uint4*>(stage)[vector];
    if (type == DenseType::bfloat16) return raw;
    const __half2* halves = reinterpret_cast<const __half2*>(&raw);
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 wide = __half22float2(halves[i]);
      pairs[i] = bf16_piece_pair<kPiece>(wide.x, wide.y);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};

}  // namespace my_ops
