// The arithmetic of the stretch kernel: x is mma's operand A, up to 16 rows of it, and a tile of
// eight rows of the weight is B. Device only, sm_90a, needs no torch.
#pragma once

#include "fp4_matmul/shared_words.cuh"
#include "fp4_matmul/stream_step.cuh"
#include "fp4_matmul/stretch_copies.cuh"

namespace my_ops {

template <typename scalar_t_, Fp4Format kFormat_, int kGroups_>
struct StretchTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr bool kMx = kFormat == Fp4Format::mxfp4;
  static constexpr int kGroups = kGroups_;  // of eight rows of x
  static constexpr int kTokens = 8 * kGroups;
  static constexpr int kScaleBlock = fp4_block_size(kFormat);
  static constexpr int kSums = kTokens * kStretchTileRows;  // of a tile
};

// Four bytes from anywhere.
__device__ __forceinline__ uint32_t load_window(uint32_t from) {
  const uint32_t at = from & ~3u;
  const uint32_t low = load_shared_bytes<4>(at), high = load_shared_bytes<4>(at + 4);
  return __funnelshift_r(low, high, from * 8);
}

// A lane's part of x in 16 elements of K: rows lane / 4 and 8 below, in the order of the codes.
template <typename Tile>
struct StretchX {
  uint4 low[2], high[2];

  // `from`: row 0, at the lane's elements. Rows that x has not repeat its last one; what comes of
  // them is not stored. Every other row is read in the other order, so that eight lanes of two
  // rows, at multiples of 32 bytes, meet no bank twice.
  __device__ __forceinline__ void take(uint32_t from, int row_bytes, int M) {
    const int g = threadIdx.x % 32 / 4;
    const bool odd = g % 2;
    const auto take_row = [&](uint4(&to)[2], int row) {
      const uint32_t at = from + min(row, M - 1) * row_bytes;
      const uint4 a = pair_order(load_shared16(at + (odd ? 16 : 0)));
      const uint4 b = pair_order(load_shared16(at + (odd ? 0 : 16)));
      to[0] = odd ? b : a;
      to[1] = odd ? a : b;
    };
    take_row(low, g);
    if constexpr (Tile::kGroups == 2) take_row(high, g + 8);
  }
};

// What a warp has of a tile: tokens lane / 4 and 8 below, rows lane % 4 * 2 and the next. Two sums
// of each, as an instruction waits for the one before it.
template <typename Tile>
struct StretchSums {
  float parts[2][4] = {};

  // `pair`: the scale of the 16 codes.
  __device__ __forceinline__ void add(uint2 codes, uint32_t pair, const StretchX<Tile>& x) {
    using scalar_t = typename Tile::scalar_t;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      uint32_t b[4];
      stream_pairs(scalar_t{}, w == 0 ? codes.x : codes.y, b);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = multiply_pairs(scalar_t{}, b[i], pair);
      const uint4 low = x.low[w], high = Tile::kGroups == 2 ? x.high[w] : uint4{};
      mma(scalar_t{}, parts[0], low.x, high.x, low.y, high.y, b[0], b[1]);
      mma(scalar_t{}, parts[1], low.z, high.z, low.w, high.w, b[2], b[3]);
    }
  }

  // `to`: of the warp and tile.
  __device__ __forceinline__ void put(uint32_t to) const {
    const uint32_t at = to + threadIdx.x % 32 * 8;
    put_pair(at, parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]);
    if constexpr (Tile::kGroups == 2) {
      put_pair(at + 256, parts[0][2] + parts[1][2], parts[0][3] + parts[1][3]);
    }
  }

 private:
  __device__ static __forceinline__ void put_pair(uint32_t to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
  }
};

// Scale bytes as pairs.
template <typename Tile>
class StretchScales {
 public:
  using scalar_t = typename Tile::scalar_t;

  __device__ __forceinline__ explicit StretchScales(float factor) : factor_(factor) {}

  // Byte s is that of codes[s].
  template <int kCount>
  __device__ __forceinline__ void pairs(uint32_t bytes, const uint2 (&codes)[kCount],
                                        uint32_t (&pairs)[kCount]) {
    uint32_t two[2];
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      if constexpr (Tile::kMx) {
        pairs[s] = fitting_.pair(codes[s].x | codes[s].y, bytes >> 8 * s & 0xFF);
      } else {
        if (s % 2 == 0) nvfp4_scale_pairs<scalar_t>(bytes >> 8 * s, factor_, two);
        pairs[s] = two[s % 2];
      }
    }
  }
  __device__ __forceinline__ bool all_fit() const {
    return !Tile::kMx || __all_sync(~0u, fitting_.all_fit());
  }

 private:
  float factor_;
  FittingScales<scalar_t> fitting_;
};

}  // namespace my_ops
