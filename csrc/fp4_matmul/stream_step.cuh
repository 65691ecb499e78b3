// The arithmetic of the stream kernel: one step of a warp. Device only, needs no torch.
#pragma once

#include <type_traits>

#include "fp4_matmul/fp4_e8m0.cuh"
#include "fp4_matmul/quick_pairs.cuh"
#include "fp4_matmul/stream_x.cuh"

namespace my_ops {

// Eight codes as pairs.
__device__ __forceinline__ void stream_pairs(__half, uint32_t codes, uint32_t (&pairs)[4]) {
  code_pairs(__half{}, codes, pairs);
}

__device__ __forceinline__ void stream_pairs(__nv_bfloat16, uint32_t codes, uint32_t (&pairs)[4]) {
  quick_pairs(__nv_bfloat16{}, codes, pairs);
}

// A lane's part of a step: of rows lane / 4 and 8 below, 32 codes from lane % 4 * 32 and as many
// 128 behind them, as eight words.
template <typename Tile>
struct StreamStep {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr bool kHalf = std::is_same_v<scalar_t, __half>;
  // Of a group of eight rows of x two, as an instruction waits for the one before it.
  using Sums = float[Tile::kGroups][2][4];
  using X = StreamX<Tile>;

  // The scale bytes of 32 codes of either row, for words 0-3 and 4-7.
  struct Scales {
    uint32_t low[2], high[2];

    // shift: of ragged rows, the same for both.
    __device__ __forceinline__ void load(const uint8_t* scales, int shift) {
      constexpr int kBytes = 32 / Tile::kScaleBlock;
      constexpr int kPitch = Tile::kScalePitch;
      const int lane = threadIdx.x % 32;
      const uint8_t* const from = scales + lane / 4 * kPitch + lane % 4 * kBytes + shift;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        low[half] = load_scale<kBytes>(from + half * 4 * kBytes);
        high[half] = load_scale<kBytes>(from + half * 4 * kBytes + 8 * kPitch);
      }
    }
    template <int kBytes>
    __device__ static __forceinline__ uint32_t load_scale(const uint8_t* from) {
      if (kBytes == 1) return *from;
      return Tile::kRagged ? from[0] | from[1] << 8 : *reinterpret_cast<const uint16_t*>(from);
    }
    // Whether the factors of all codes of the warp fit 16 bits.
    __device__ __forceinline__ bool fit() const {
      return __all_sync(~0u, e8m0_fits<scalar_t>(low[0]) && e8m0_fits<scalar_t>(low[1]) &&
                                 e8m0_fits<scalar_t>(high[0]) && e8m0_fits<scalar_t>(high[1]));
    }
  };

  struct Codes {
    uint4 low[2], high[2];

    __device__ __forceinline__ void load(const uint8_t* codes) {
      const int row = threadIdx.x % 32 / 4, unit = threadIdx.x % 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint8_t* const from = codes + row * 128 + ((unit + half * 4) ^ (row & 1) << 2) * 16;
        low[half] = load_shared16(from);
        high[half] = load_shared16(from + 8 * 128);
      }
    }
  };

  // sums += codes * x.
  __device__ static __forceinline__ void multiply(Sums& sums, const Codes& codes,
                                                  const Scales& scales, const X& x, float factor) {
    if constexpr (kMx) {
      if (!scales.fit()) {
        multiply_wide(sums, codes, scales, x);
        return;
      }
    }
    multiply_once(sums, codes, scales, x, factor,
                  [](uint32_t /*codes*/, uint32_t byte) { return e8m0_pair(scalar_t{}, byte); });
  }

  // The same by one multiplication of each pair, with what mx_pair makes of E8M0 scales.
  template <typename MxPair>
  __device__ static __forceinline__ void multiply_once(Sums& sums, const Codes& codes,
                                                       const Scales& scales, const X& x,
                                                       float factor, const MxPair& mx_pair) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low_pairs[2], high_pairs[2];
      if constexpr (kMx) {
        const uint4 &low = codes.low[half], &high = codes.high[half];
        low_pairs[0] = low_pairs[1] = mx_pair(low.x | low.y | low.z | low.w, scales.low[half]);
        high_pairs[0] = high_pairs[1] =
            mx_pair(high.x | high.y | high.z | high.w, scales.high[half]);
      } else {
        nvfp4_scale_pairs<scalar_t>(scales.low[half], factor, low_pairs);
        nvfp4_scale_pairs<scalar_t>(scales.high[half], factor, high_pairs);
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t a[4], b[4];
        stream_pairs(scalar_t{}, word(codes.low[half], w), a);
        stream_pairs(scalar_t{}, word(codes.high[half], w), b);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[i] = multiply_pairs(scalar_t{}, a[i], low_pairs[w / 2]);
          b[i] = multiply_pairs(scalar_t{}, b[i], high_pairs[w / 2]);
        }
#pragma unroll
        for (int group = 0; group < Tile::kGroups; ++group) {
          const uint4& v = x.words[group][half * 4 + w];
          mma(scalar_t{}, sums[group][0], a[0], b[0], a[1], b[1], v.x, v.y);
          mma(scalar_t{}, sums[group][1], a[2], b[2], a[3], b[3], v.z, v.w);
        }
      }
    }
  }

  // For any E8M0 scales, in bfloat16, times 2^-5 like the other sums; float16 x as two pieces, the
  // small one first.
  __device__ static __forceinline__ void multiply_wide(Sums& sums, const Codes& codes,
                                                       const Scales& scales, const X& x) {
    constexpr __nv_bfloat16 kElement{};
    float parts[Tile::kGroups][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t a[4], b[4];
        decode_wide<121>(word(codes.low[half], w), scales.low[half], a);
        decode_wide<121>(word(codes.high[half], w), scales.high[half], b);
#pragma unroll
        for (int group = 0; group < Tile::kGroups; ++group) {
          const uint4& v = x.words[group][half * 4 + w];
          auto& part = parts[group];
          if constexpr (kHalf) {
            const PairPieces p[4] = {bf16_pieces(v.x), bf16_pieces(v.y), bf16_pieces(v.z),
                                     bf16_pieces(v.w)};
            mma(kElement, part, a[0], b[0], a[1], b[1], p[0].low, p[1].low);
            mma(kElement, part, a[2], b[2], a[3], b[3], p[2].low, p[3].low);
            mma(kElement, part, a[0], b[0], a[1], b[1], p[0].high, p[1].high);
            mma(kElement, part, a[2], b[2], a[3], b[3], p[2].high, p[3].high);
          } else {
            mma(kElement, part, a[0], b[0], a[1], b[1], v.x, v.y);
            mma(kElement, part, a[2], b[2], a[3], b[3], v.z, v.w);
          }
        }
      }
    }
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[group][0][e] += parts[group][e];
      }
    }
  }

  __device__ static __forceinline__ float4 total(const float (&sums)[2][4]) {
    return {sums[0][0] + sums[1][0], sums[0][1] + sums[1][1], sums[0][2] + sums[1][2],
            sums[0][3] + sums[1][3]};
  }

  __device__ static __forceinline__ uint32_t word(const uint4& codes, int w) {
    return w == 0 ? codes.x : (w == 1 ? codes.y : (w == 2 ? codes.z : codes.w));
  }
};

}  // namespace my_ops
