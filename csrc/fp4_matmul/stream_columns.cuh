// The arithmetic of the stream kernel for one or two rows of x: block scales multiply sums of
// products, not codes. Device only, needs no torch.
//
// mma's eight columns of x then hold these rows once for each lane of a quad, zeros where the
// elements belong to another lane: column 2 t + m of a sum is what lane t has of row m, all under
// one block scale. Where every code times its scale takes four multiplications a word, here it is
// one for two words: 12.4 us at M = 1, 8192 x 8192, bfloat16 and NVFP4, for 13.1; MXFP4 11.9.
#pragma once

#include "fp4_matmul/quad.cuh"
#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// bfloat16 codes are 2^-126 of their value, so x is multiplied by 2^100. Where an x is so large or
// so small that products would leave the normal numbers, scales multiply codes after all.
constexpr uint32_t kColumnLift = 0x71807180u;  // as a pair
__device__ __forceinline__ bool can_lift(uint32_t pair) {
  constexpr uint32_t kLeast = 0x1280u, kMost = 0x4D00u;  // 2^-90, 2^27
  const auto fits = [](uint32_t bits) {
    return (bits == 0) | (bits - kLeast < kMost - kLeast);  // no branch
  };
  return fits(pair & 0x7FFFu) & fits(pair >> 16 & 0x7FFFu);
}

// The same of eight elements: 25 instructions for 80, which count where each warp has its own x.
__device__ __forceinline__ bool can_lift_all(const uint4& v) {
  constexpr int kLeast = 0x1280 - 1 - 0x8000, kMost = 0x4D00;
  uint32_t most = 0, least = 0x7FFF7FFFu;
#pragma unroll
  for (const uint32_t pair : {v.x, v.y, v.z, v.w}) {
    most = __vmaxu2(most, pair & 0x7FFF7FFFu);
    // As signed numbers zeros are the largest, others their magnitude - 1 from the smallest on.
    least = __vmins2(least, (pair | 0x80008000u) - 0x00010001u);
  }
  return static_cast<int>(most >> 16) < kMost && static_cast<int>(most & 0xFFFFu) < kMost &&
         static_cast<int16_t>(least >> 16) >= kLeast && static_cast<int16_t>(least) >= kLeast;
}

template <typename Tile>
struct StreamColumns {
  using Step = StreamStep<Tile>;
  using scalar_t = typename Tile::scalar_t;
  static constexpr int kWords = Tile::kScaleBlock / 8;  // of a block

  // Sums are what StreamStep::multiply gives after a multiplication by kBlockFactor before their
  // scale, as E8M0 scales reach down to where the products are, and by tile_factor at last.
  static constexpr float kBlockFactor = !Step::kMx ? 1.0f : (Step::kHalf ? 0x1p9f : 0x1p21f);
  __device__ static __forceinline__ float tile_factor(float scale_factor) {
    return Step::kMx || Step::kHalf ? 1.0f : scale_factor * 0x1p-100f;
  }

  // Lifts all steps of x, `rows` of which lie in shared memory, if it can.
  template <int kSteps>
  __device__ static __forceinline__ bool lift(StreamX<Tile> (&x)[kSteps], const uint8_t* shared,
                                              int rows) {
    if constexpr (Step::kHalf) return true;
    bool mine = true;
    for (int row = 0; row < rows; ++row) {
      const uint4 v = load_shared16(shared + row * kStreamXBytes + threadIdx.x % 32 * 16);
      mine = mine & can_lift(v.x) & can_lift(v.y) & can_lift(v.z) & can_lift(v.w);
    }
    const bool all = __all_sync(~0u, mine);
    if (!all) return false;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        uint4& v = x[s].words[0][w];
        v = {multiply_pairs(scalar_t{}, v.x, kColumnLift),
             multiply_pairs(scalar_t{}, v.y, kColumnLift),
             multiply_pairs(scalar_t{}, v.z, kColumnLift),
             multiply_pairs(scalar_t{}, v.w, kColumnLift)};
      }
    }
    return true;
  }

  struct Factors {
    float of[4 / kWords];  // the blocks of 32 codes

    __device__ __forceinline__ explicit Factors(uint32_t bytes) {
      if constexpr (Step::kMx) {
        of[0] = e8m0_decode(bytes);
      } else {
        const __half2_raw pair =
            __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(bytes), __NV_E4M3);
        const float2 scales = __half22float2(__half2(pair));
        of[0] = scales.x;
        of[1] = scales.y;
      }
    }
  };

  // sums += codes * x.
  __device__ static __forceinline__ void multiply(typename Step::Sums& sums,
                                                  const typename Step::Codes& codes,
                                                  const typename Step::Scales& scales,
                                                  const StreamX<Tile>& x) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Factors low(scales.low[half]), high(scales.high[half]);
      float block[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t a[4], b[4];
        stream_pairs(scalar_t{}, Step::word(codes.low[half], w), a);
        stream_pairs(scalar_t{}, Step::word(codes.high[half], w), b);
        const uint4& v = x.words[0][half * 4 + w];
        if (w % kWords == 0) {
#pragma unroll
          for (float& product : block) product = 0.0f;
        }
        mma(scalar_t{}, block, a[0], b[0], a[1], b[1], v.x, v.y);
        mma(scalar_t{}, block, a[2], b[2], a[3], b[3], v.z, v.w);
        if (w % kWords == kWords - 1) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float factor = (e < 2 ? low : high).of[w / kWords];
            float& sum = sums[0][(half * 4 + w) / kWords % 2][e];
            sum = fmaf(Step::kMx ? block[e] * kBlockFactor : block[e], factor, sum);
          }
        }
      }
    }
  }

  // Of what the lanes of a quad have of the same rows.
  __device__ static __forceinline__ float4 finish(float4 sum, bool lifted, float scale_factor) {
    const float factor = lifted ? tile_factor(scale_factor) : 1.0f;
    const auto of_quad = [&](float part) { return sum_of_quad(part) * factor; };
    return {of_quad(sum.x), of_quad(sum.y), of_quad(sum.z), of_quad(sum.w)};
  }
};

}  // namespace my_ops
