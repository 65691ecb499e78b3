// The arguments, tiles and memory of the stream kernel (stream_kernel.cuh), and its arithmetic: one
// step of a warp. Device only, needs no torch.
#pragma once

#include <type_traits>

#include "fp4_matmul/fp4_fragment.cuh"
#include "fp4_matmul/product_output.cuh"
#include "fp4_matmul/stream_plan.h"

namespace my_ops {

struct StreamArguments {
  const uint8_t* codes;   // [N, K / 2], rows start at multiples of 16 bytes
  const uint8_t* scales;  // [N, K / block], of 2 bytes (NVFP4)
  const float* amax;      // null: no global scale
  const void* x;          // [M, K], rows x_stride elements apart
  int64_t x_stride;
  bool x_vectors;  // rows of x start at multiples of 16 bytes
  ProductOutput out;
  int steps;       // of kStreamDepth along K, a block's
  int team_warps;  // that share a tile
  int splits;      // blocks of a cluster, along K
};

template <typename scalar_t_, Fp4Format kFormat_>
struct StreamTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
};

// Block scales go into the products times scale_factor, sums into the result times sum_factor: a
// small global scale is a factor of bfloat16 products, so that sums of large x do not overflow.
template <typename scalar_t, Fp4Format kFormat>
__device__ __forceinline__ FragmentScale stream_scale(const float* amax) {
  if (kFormat == Fp4Format::mxfp4 || amax == nullptr) return {};
  const float global = nvfp4_tensor_scale(*amax).global;
  if constexpr (std::is_same_v<scalar_t, __half>) return {1.0f, global};
  const int exponent = static_cast<int>(float_bits(global) >> 23) - 127;
  const int moved = min(max(exponent, -100), 0);
  return {bits_float((127 + moved) << 23), global * bits_float((127 - moved) << 23)};
}

// What a lane reads in one step: 32 codes and their scale bytes of two rows.
template <typename Tile>
struct StreamWords {
  uint4 low, high;
  uint32_t scale_low, scale_high;
};

// Both codes of a byte as a pair of 16-bit numbers, from a table in shared memory with a copy of
// each entry for each lane, so that no two lanes meet at a bank: 12 instructions for the 8 codes of
// a word, against 16 of arithmetic, most of them at half rate.
template <typename scalar_t>
__device__ __forceinline__ void fill_table(uint32_t* table) {
  for (int i = threadIdx.x; i < kTableBytes / 4; i += kStreamWarps * 32) {
    table[i] = pack_pair(scalar_t{}, e2m1_decode(i / 32 & 15), e2m1_decode(i / 32 >> 4));
  }
}

__device__ __forceinline__ uint32_t table_pair(uint32_t table, uint32_t word, int byte) {
  uint32_t pair;
  const uint32_t address = __byte_perm(word, 0, 0x4440 + byte) * 128 + table;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(address));
  return pair;
}

// A pair of float16 codes times any E8M0 scale: in bfloat16, exactly.
__device__ __forceinline__ uint32_t wide_product(uint32_t pair, uint32_t byte) {
  const float2 codes = __half22float2(reinterpret_cast<const __half2&>(pair));
  const __nv_bfloat162 wide = __floats2bfloat162_rn(codes.x, codes.y);
  return multiply_pairs(__nv_bfloat16{}, reinterpret_cast<const uint32_t&>(wide),
                        e8m0_bf16_pair(byte));
}

template <typename Tile>
struct StreamStep {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr bool kHalf = std::is_same_v<scalar_t, __half>;
  using Sums = float[4];

  // Shared addresses of this lane's parts of x (of the step's first word) and of the table.
  struct Addresses {
    uint32_t x, table;
    uint32_t word_bytes;  // from a word's part of x to the next
  };

  __device__ static __forceinline__ uint4 load_x(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
  }

  // sums += words * x.
  __device__ static __forceinline__ void multiply(Sums& sums, const StreamWords<Tile>& words,
                                                  const Addresses& at, float scale_factor) {
    if constexpr (kMx && kHalf) {
      const bool fits = e8m0_pair_fits(words.scale_low) && e8m0_pair_fits(words.scale_high);
      if (!__all_sync(~0u, fits)) {
        multiply_words<true>(sums, words, at, scale_factor);
        return;
      }
    }
    multiply_words<false>(sums, words, at, scale_factor);
  }

  template <bool kWide>
  __device__ static __forceinline__ void multiply_words(Sums& sums, const StreamWords<Tile>& words,
                                                        const Addresses& at, float scale_factor) {
    uint32_t scale_low[2], scale_high[2];
    if constexpr (kMx) {
      scale_low[0] = scale_low[1] = e8m0_pair(scalar_t{}, words.scale_low);
      scale_high[0] = scale_high[1] = e8m0_pair(scalar_t{}, words.scale_high);
    } else {
      nvfp4_scale_pairs<scalar_t>(words.scale_low, scale_factor, scale_low);
      nvfp4_scale_pairs<scalar_t>(words.scale_high, scale_factor, scale_high);
    }
    const uint32_t low[4] = {words.low.x, words.low.y, words.low.z, words.low.w};
    const uint32_t high[4] = {words.high.x, words.high.y, words.high.z, words.high.w};
    Sums step = {};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = table_pair(at.table, low[w], i);
        b[i] = table_pair(at.table, high[w], i);
        a[i] = kWide ? wide_product(a[i], words.scale_low)
                     : multiply_pairs(scalar_t{}, a[i], scale_low[w / 2]);
        b[i] = kWide ? wide_product(b[i], words.scale_high)
                     : multiply_pairs(scalar_t{}, b[i], scale_high[w / 2]);
      }
      const uint4 x = load_x(at.x + w * at.word_bytes);
      if constexpr (kWide) {  // float16 x as two pieces, the small one first
        const PairPieces p[4] = {bf16_pieces(x.x), bf16_pieces(x.y), bf16_pieces(x.z),
                                 bf16_pieces(x.w)};
        constexpr __nv_bfloat16 kElement{};
        mma(kElement, step, a[0], b[0], a[1], b[1], p[0].low, p[1].low);
        mma(kElement, step, a[2], b[2], a[3], b[3], p[2].low, p[3].low);
        mma(kElement, step, a[0], b[0], a[1], b[1], p[0].high, p[1].high);
        mma(kElement, step, a[2], b[2], a[3], b[3], p[2].high, p[3].high);
      } else {
        mma(scalar_t{}, step, a[0], b[0], a[1], b[1], x.x, x.y);
        mma(scalar_t{}, step, a[2], b[2], a[3], b[3], x.z, x.w);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[e] += step[e];
  }

  // float16 holds these scales and their products with all codes.
  __device__ static __forceinline__ bool e8m0_pair_fits(uint32_t byte) {
    return byte - 113u <= 27u;
  }
  __device__ static __forceinline__ uint32_t e8m0_pair(__half, uint32_t byte) {
    return (byte - 112u) * 0x04000400u;
  }
  __device__ static __forceinline__ uint32_t e8m0_pair(__nv_bfloat16, uint32_t byte) {
    return my_ops::e8m0_bf16_pair(byte);
  }
};

}  // namespace my_ops
