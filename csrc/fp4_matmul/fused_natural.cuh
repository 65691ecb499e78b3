// Parts of the fused kernel's loop where x comes in the order of its elements: the decoding of half
// a step. Device only, needs no torch.
//
// The tensor cores then want elements 2t and 2t + 1 of every eight in lane t of a quad: byte t of
// every word, so all four lanes load all words. Two codes of a byte become the two halves of a pair
// by a choice of bytes after the decoding. An instruction costs 46 others instead of 29, but x
// needs no image, which takes 3 to 16 us.
#pragma once

#include "fp4_matmul/fused_step.cuh"

namespace my_ops {

// As HalfStep, a word at a time.
template <typename Tile>
struct NaturalHalfStep {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr bool kHalf = std::is_same_v<scalar_t, __half>;
  const float factor;
  const uint32_t select = 0x40 + threadIdx.x % 4 * 0x11;  // byte t of each of two words
  uint4 low, high;                                        // 32 codes of either row
  // NVFP4: two of the eight scales of either row, the other lanes of the quad have the others.
  // MXFP4: the bytes of all four.
  uint32_t low_scales, high_scales;
  bool misfits = false;

  __device__ __forceinline__ explicit NaturalHalfStep(float factor) : factor(factor) {}

  // Brings 32 codes of either row, and all scales with the first ones. Rows have their chunks in
  // different places (WeightRing), so that eight rows meet all banks.
  __device__ __forceinline__ void load(uint32_t slot, int half, int w, int /*shift*/) {
    const int lane = threadIdx.x % 32;
    const uint32_t codes = (slot + lane / 4 * (128 + 16)) ^ (4 * half + w) * 16;
    low = load_shared16(codes);
    high = load_shared16(codes + 1024);
    if (w > 0) return;
    constexpr int kBytes = kMx ? 4 : 2;
    const uint32_t scales = slot + Tile::kCodeBytes + lane / 4 * Tile::kScalePitch +
                            half * (Tile::kRowScales / 2) + (kMx ? 0 : lane % 4 * kBytes);
    low_scales = load_shared_bytes<kBytes>(scales);
    high_scales = load_shared_bytes<kBytes>(scales + 8 * Tile::kScalePitch);
  }

  __device__ __forceinline__ void begin() {
    if constexpr (!kMx) {
      low_scales = nvfp4_scales<scalar_t>(low_scales, factor);
      high_scales = nvfp4_scales<scalar_t>(high_scales, factor);
    }
  }

  // Byte t of the four words: of 0 and 1 in even places, of 2 and 3 in odd ones.
  __device__ __forceinline__ uint32_t gather(const uint4& words) const {
    return __byte_perm(__byte_perm(words.x, words.y, select), __byte_perm(words.z, words.w, select),
                       0x5140);
  }

  // In the order of code_pairs: low and high codes of bytes 0 and 2, then of 1 and 3.
  __device__ __forceinline__ void decode_row(uint32_t codes, uint32_t scales, int w,
                                             uint32_t (&pairs)[4]) {
    if constexpr (!kMx) {
      const uint32_t both = __shfl_sync(~0u, scales, w, 4);
      const uint32_t scale[2] = {__byte_perm(both, both, 0x1010), __byte_perm(both, both, 0x3232)};
      code_pairs(scalar_t{}, codes, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = multiply_pairs(scalar_t{}, pairs[i], scale[i / 2]);
    } else {
      const uint32_t byte = scales >> 8 * w & 0xFFu;
      if constexpr (kHalf) {
        misfits |= !e8m0_fits(__half{}, byte) && ((codes & 0x77777777u) != 0 || byte == kE8M0NaN);
        decode<scalar_t>(codes, e8m0_pair(scalar_t{}, min(max(byte, 109u), 133u)), pairs);
      } else {
        decode_wide(codes, byte, pairs);
      }
    }
  }

  // The 32 codes of both rows as the operands A of two instructions.
  __device__ __forceinline__ void decode_word(int w, uint32_t (*fragments)[4]) {
    uint32_t first = gather(low), second = gather(high);
    asm volatile("" : "+r"(first), "+r"(second));  // as in HalfStep
    uint32_t a[4], b[4];
    decode_row(first, low_scales, w, a);
    decode_row(second, high_scales, w, b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      fragments[i][0] = __byte_perm(a[2 * i], a[2 * i + 1], 0x5410);
      fragments[i][1] = __byte_perm(b[2 * i], b[2 * i + 1], 0x5410);
      fragments[i][2] = __byte_perm(a[2 * i], a[2 * i + 1], 0x7632);
      fragments[i][3] = __byte_perm(b[2 * i], b[2 * i + 1], 0x7632);
    }
  }
};

}  // namespace my_ops
