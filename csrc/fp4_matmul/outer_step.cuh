// The arithmetic of the outer kernel: one step of a warp, 32 rows of the factor by 128 of its
// columns. Device only, needs no torch.
#pragma once

#include <type_traits>

#include "fp4_matmul/fp4_e8m0.cuh"
#include "fp4_matmul/outer_plan.h"
#include "fp4_matmul/product_output.cuh"
#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

struct OuterArguments {
  const uint8_t* codes;   // [K, N / 2]
  const uint8_t* scales;  // [K, N / block]
  const float* amax;      // null: no global scale
  const void* x;          // [M, K], rows x_stride elements apart, at multiples of 16 bytes
  int64_t x_stride;
  ProductOutput out;  // [M, N]
};

template <typename scalar_t_, Fp4Format kFormat_, int kTokens_>
struct OuterTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarps = kTokens > 16 ? 8 : 16;  // what registers have room for
  static constexpr int kSlots = kTokens > 16 ? 4 : 3;   // steps on their way to a warp
  static constexpr int kScaleBytes = kOuterCols / fp4_block_size(kFormat);  // of a row
  static constexpr int kCodeBytes = kOuterDepth * kOuterCols / 2;
  static constexpr int kSlotBytes = kCodeBytes + kOuterDepth * kScaleBytes;
  static constexpr int kSumPitch = kOuterCols + 4;  // floats
  static constexpr int kSumBytes = kTokens * kSumPitch * 4;
  static constexpr int kSharedBytes =
      kWarps * (kSlots * kSlotBytes > kSumBytes ? kSlots * kSlotBytes : kSumBytes);
};

// Where 16 bytes of a row lie in a slot. Lanes read eight bytes of rows that are eight apart: these
// are brought to different banks.
__device__ __forceinline__ int outer_chunk(int row, int chunk) {
  return (row ^ (row >> 4 & 1)) * (kOuterCols / 2) + (chunk ^ (row >> 3 & 1) << 1) * 16;
}

// Lane l has the rows 8 * (l % 4) to 8 * (l % 4) + 8 of the step and the columns 16 * (l / 4) to
// 16 * (l / 4) + 16, in two words a row. Two rows' halves of a word make a word of which the codes
// are decoded as ever: a pair is then one column of both rows, as operand A wants it, and has a
// scale for either.
template <typename Tile>
struct OuterStep {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr int kStrips = Tile::kTokens / 8;
  using Sums = float[8][kStrips][4];  // by column in a word

  // x as operand B: of a row in each strip, the elements at the lane's rows of the factor.
  struct X {
    uint4 words[kStrips];

    __device__ __forceinline__ void load(const OuterArguments& args, int64_t first_token, int k,
                                         int end_k) {
      const int lane = threadIdx.x % 32;
      k += lane % 4 * 8;
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        const int64_t token = first_token + 8 * s + lane / 4;
        words[s] = {};
        if (token < args.out.M && k < end_k) {
          const auto* const from = static_cast<const uint16_t*>(args.x) + token * args.x_stride + k;
          asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(words[s].x), "=r"(words[s].y), "=r"(words[s].z), "=r"(words[s].w)
                       : "l"(from));
        }
      }
    }
    __device__ __forceinline__ uint32_t pair(int s, int p) const {
      return p == 0 ? words[s].x : (p == 1 ? words[s].y : (p == 2 ? words[s].z : words[s].w));
    }
  };

  // The scales of two rows, whose bytes are the low ones of `bytes`.
  __device__ static __forceinline__ uint32_t scale_pair(uint32_t bytes, float factor) {
    const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(bytes), __NV_E4M3);
    if constexpr (std::is_same_v<scalar_t, __half>) {
      return raw.x | static_cast<uint32_t>(raw.y) << 16;
    } else {
      const float2 scales = __half22float2(__half2(raw));
      return pack_pair(scalar_t{}, scales.x * factor, scales.y * factor);
    }
  }

  __device__ static __forceinline__ void decode_rows(uint32_t codes, uint32_t scale,
                                                     uint32_t (&pairs)[4]) {
    if constexpr (kMx) {
      constexpr uint32_t kBias = 0x7C007C00u;  // 2^121
      code_pairs(scalar_t{}, codes, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = multiply_pairs(scalar_t{}, multiply_pairs(scalar_t{}, pairs[i], kBias), scale);
      }
    } else {
      decode<scalar_t>(codes, scale, pairs);
    }
  }

  // sums += codes * x.
  __device__ static __forceinline__ void multiply(Sums& sums, const uint8_t* slot, const X& x,
                                                  float factor) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint8_t* const scales =
        slot + Tile::kCodeBytes + t * 8 * Tile::kScaleBytes + g * Tile::kScaleBytes / 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // rows 0-3 and 4-7 of the lane
      uint2 words[4];
      uint32_t scale[2];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = t * 8 + half * 4 + r;
        words[r] = *reinterpret_cast<const uint2*>(slot + outer_chunk(row, g / 2) + g % 2 * 8);
      }
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint8_t* const row = scales + (half * 4 + 2 * p) * Tile::kScaleBytes;
        const uint32_t low = row[0], high = row[Tile::kScaleBytes];
        if constexpr (kMx) {
          scale[p] = __byte_perm(e8m0_bf16_pair(low), e8m0_bf16_pair(high), 0x5410);
        } else {
          scale[p] = scale_pair(low | high << 8, factor);
        }
      }
#pragma unroll
      for (int part = 0; part < 2; ++part) {  // columns 0-3 and 4-7 of a word
        const uint32_t select = part == 0 ? 0x5410 : 0x7632;
        uint32_t a[4][4];
        decode_rows(__byte_perm(words[0].x, words[1].x, select), scale[0], a[0]);
        decode_rows(__byte_perm(words[0].y, words[1].y, select), scale[0], a[1]);
        decode_rows(__byte_perm(words[2].x, words[3].x, select), scale[1], a[2]);
        decode_rows(__byte_perm(words[2].y, words[3].y, select), scale[1], a[3]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int s = 0; s < kStrips; ++s) {
            mma(scalar_t{}, sums[part * 4 + j][s], a[0][j], a[1][j], a[2][j], a[3][j],
                x.pair(s, half * 2), x.pair(s, half * 2 + 1));
          }
        }
      }
    }
  }
};

}  // namespace my_ops
