// The arithmetic of the gemv kernel. Device only, needs no torch.
//
// mma's 16 rows are 8 rows of the weight at two places of K, its eight columns the row of x once
// for each lane of a quad and place: column 2 t + h holds what lane t has of place h, zeros where
// elements belong to another lane. So a sum is of products under one block scale, as in
// stream_columns.cuh.
#pragma once

#include "fp4_matmul/ragged_end.cuh"
#include "fp4_matmul/shared_words.cuh"
#include "fp4_matmul/stream_columns.cuh"

namespace my_ops {

// Where a lane's part of a slice lies, in shared memory.
struct GemvAt {
  uint32_t codes[2], scales[2];  // of both places
};

template <typename Tile>
struct GemvStep {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr bool kHalf = std::is_same_v<scalar_t, __half>;
  static constexpr int kBlocks = kMx ? 1 : 2;  // of 32 codes
  static constexpr int kLaneScales = kBlocks;

  uint4 codes[2];
  uint32_t scales[2];
  uint4 x[4] = {};  // zeros stay in lanes that take none

  __device__ __forceinline__ void take(const GemvAt& at) {
    take_codes(at.codes[0], at.codes[1]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scales[h] = load_shared_bytes<kLaneScales, !Tile::kFlat>(at.scales[h]);
    }
  }

  // Codes in line, with their scales `shift` bits behind the beginning of a word.
  __device__ __forceinline__ void take_in_line(uint32_t codes, uint32_t words, int shift) {
    take_codes(codes, codes + Tile::kPlaceStep / 2);
    const uint32_t bytes =
        __funnelshift_r(load_shared_bytes<4>(words), load_shared_bytes<4>(words + 4), shift);
    scales[0] = bytes & 0xFFFFu;
    scales[1] = bytes >> 16;
  }

  __device__ __forceinline__ void end_row(int half, int left) {
    my_ops::end_row<kLaneScales>(left, codes[half], scales[half]);
  }

  // Elements in the order of the codes, from `from` on: chunks of 16 bytes are swapped.
  __device__ __forceinline__ void take_x(uint32_t from, uint32_t mine) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      asm volatile(
          "{\n.reg .pred mine;\nsetp.ne.u32 mine, %5, 0;\n"
          "@mine ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
          : "+r"(x[w].x), "+r"(x[w].y), "+r"(x[w].z), "+r"(x[w].w)
          : "r"(from ^ w * 16), "r"(mine));
    }
  }

  // sums[h]: this lane's products of place h. `swapped`: codes and scales of the row are in each
  // other's place, x is not.
  __device__ __forceinline__ void multiply(float (&sums)[2], bool lifted, float factor,
                                           bool swapped = false) const {
    if (kHalf || lifted) {
      multiply_lifted(sums, swapped);
    } else {
      multiply_pairs_by_scale(sums, factor, swapped);
    }
  }

 private:
  __device__ __forceinline__ void take_codes(uint32_t first, uint32_t second) {
    codes[0] = Tile::kFlat ? load_shared16_by_8(first) : load_shared16(first);
    codes[1] = Tile::kFlat ? load_shared16_by_8(second) : load_shared16(second);
  }
  __device__ __forceinline__ uint32_t word(int half, int w) const {
    const uint4& v = codes[half];
    return w == 0 ? v.x : (w == 1 ? v.y : (w == 2 ? v.z : v.w));
  }

  // Of mma's four sums of a lane, that of place h.
  __device__ static __forceinline__ float own_sum(const float (&sum)[4], int h, bool swapped) {
    return h == 0 ? (swapped ? sum[1] : sum[0]) : (swapped ? sum[2] : sum[3]);
  }

  __device__ __forceinline__ void multiply_lifted(float (&sums)[2], bool swapped) const {
    float factors[2][kBlocks];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const typename StreamColumns<Tile>::Factors of(scales[h]);
#pragma unroll
      for (int c = 0; c < kBlocks; ++c) factors[h][c] = of.of[c];
    }
    float block[2][4] = {};  // of 16 codes each, as an instruction waits for the one before it
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t a[4], b[4];
      stream_pairs(scalar_t{}, word(0, w), a);
      stream_pairs(scalar_t{}, word(1, w), b);
      float(&sum)[4] = block[w / 2];
      mma(scalar_t{}, sum, a[0], b[0], a[1], b[1], x[w].x, x[w].y);
      mma(scalar_t{}, sum, a[2], b[2], a[3], b[3], x[w].z, x[w].w);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float low = own_sum(block[0], h, swapped), high = own_sum(block[1], h, swapped);
      if constexpr (kMx) {
        sums[h] = (low + high) * StreamColumns<Tile>::kBlockFactor * factors[h][0];
      } else {
        sums[h] = fmaf(high, factors[h][1], fmaf(low, factors[h][0], 0.0f));
      }
    }
  }

  // For any bfloat16 x: scales multiply codes.
  __device__ __forceinline__ void multiply_pairs_by_scale(float (&sums)[2], float factor,
                                                          bool swapped) const {
    constexpr __nv_bfloat16 kElement{};
    float block[4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t pairs[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (kMx) {
          decode_wide<121>(word(h, w), scales[h], pairs[h]);
        } else {
          uint32_t scale[2];
          nvfp4_scale_pairs<__nv_bfloat16>(scales[h], factor, scale);
          decode<__nv_bfloat16>(word(h, w), scale[w / 2], pairs[h]);
        }
      }
      const uint32_t(&a)[4] = pairs[0], (&b)[4] = pairs[1];
      mma(kElement, block, a[0], b[0], a[1], b[1], x[w].x, x[w].y);
      mma(kElement, block, a[2], b[2], a[3], b[3], x[w].z, x[w].w);
    }
    sums[0] = own_sum(block, 0, swapped);
    sums[1] = own_sum(block, 1, swapped);
  }
};

}  // namespace my_ops
