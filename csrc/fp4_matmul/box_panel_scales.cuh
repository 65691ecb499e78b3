// Block scales in the box panel kernel, as factors of codes. Device only, needs no torch.
#pragma once

#include "fp4_matmul/fp4_e8m0.cuh"
#include "fp4_matmul/shared_words.cuh"

namespace my_ops {

// Those of a lane: of rows g and g + 8 of each tile.
template <typename Tile>
class BoxPanelScales {
 public:
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr bool kHalf = std::is_same_v<scalar_t, __half>;
  static constexpr int kLaneScales = 32 / Tile::kScaleBlock;
  // E8M0 in float16, whether it fits: asked for all tiles together, two scales at a time, and of
  // each only where one does not. 13.7 us for 14.0 with FittingScales, which asks where each is
  // used (M = 16, 8192 x 8192). With seven tiles there are no registers for it.
  static constexpr bool kTogether = kMx && kHalf && Tile::kTiles < 7;

  struct Pairs {
    uint32_t of[2];  // of words 0-1 and 2-3
  };

  // At the beginning of a step, of which the lane's first scale and first codes lie there.
  __device__ __forceinline__ void start(uint32_t scales, uint32_t codes) {
    if constexpr (kTogether) load_together(scales, codes);
  }
  __device__ __forceinline__ void load(uint32_t scales, int tile) {
    if constexpr (!kTogether) {
      const uint32_t from = scales + tile * 16 * Tile::kScaleRowBytes;
      bytes_[0] = load_shared_bytes<kLaneScales>(from);
      bytes_[1] = load_shared_bytes<kLaneScales>(from + 8 * Tile::kScaleRowBytes);
    }
  }
  // Of row g, or g + 8 where kRow is 1, of the tile loaded last. scale_factor: a pair of bfloat16.
  template <int kRow>
  __device__ __forceinline__ Pairs pairs(int tile, const uint4& codes, uint32_t scale_factor) {
    Pairs pairs;
    if constexpr (kTogether) {
      halves_twice(together_[tile], pairs.of);
      pairs.of[1 - kRow] = pairs.of[kRow];
    } else if constexpr (kMx) {
      pairs.of[0] = pairs.of[1] =
          fitting_.pair(codes.x | codes.y | codes.z | codes.w, bytes_[kRow]);
    } else {
      uint32_t both = nvfp4_scales<scalar_t>(bytes_[kRow], 1.0f);
      if constexpr (!kHalf) both = multiply_pairs(scalar_t{}, both, scale_factor);
      halves_twice(both, pairs.of);
    }
    return pairs;
  }

  // Whether the sums of the warp lack nothing, as far as that is cheap to know.
  __device__ __forceinline__ bool all_fit() const {
    return !kMx || __all_sync(~0u, kTogether ? !missing_ : fitting_.all_fit());
  }

 private:
  // A scale that does not fit becomes nothing, which is missing if it is a NaN or has codes.
  __device__ __forceinline__ void load_together(uint32_t scales, uint32_t codes) {
    constexpr uint32_t kTwice = 0x00010001u, kTops = 0x8000u * kTwice;
    constexpr uint32_t kLeast = kTops - kE8M0LeastFit<__half> * kTwice;
    constexpr uint32_t kMost = kTops + kE8M0MostFit * kTwice;
    constexpr uint32_t kNothing = 103;  // e8m0_pair() makes zeros of it
    uint32_t fit = kTops;
#pragma unroll
    for (int i = 0; i < Tile::kTiles; ++i) {
      const uint32_t from = scales + i * 16 * Tile::kScaleRowBytes;
      const uint32_t high = load_shared_bytes<1>(from + 8 * Tile::kScaleRowBytes);
      together_[i] = load_shared_bytes<1>(from) | high << 16;
      fit &= (together_[i] + kLeast) & (kMost - together_[i]);
    }
    if (fit != kTops) {
#pragma unroll
      for (int i = 0; i < 2 * Tile::kTiles; ++i) {
        uint32_t& both = together_[i / 2];
        const uint32_t byte = both >> i % 2 * 16 & 0xFFu;
        if (e8m0_fits<__half>(byte)) continue;
        both ^= (byte ^ kNothing) << i % 2 * 16;
        const uint4 block = load_shared16(codes + i * 1024);
        const uint32_t any = (block.x | block.y | block.z | block.w) & 0x77777777u;
        missing_ = missing_ || any != 0 || byte == kE8M0NaN;
      }
    }
#pragma unroll
    for (uint32_t& both : together_) both = (both - kNothing * kTwice) << 10;
  }

  uint32_t bytes_[2];                                // of a tile
  uint32_t together_[kTogether ? Tile::kTiles : 1];  // row g + 8 above row g
  bool missing_ = false;
  FittingScales<scalar_t> fitting_;
};

}  // namespace my_ops
