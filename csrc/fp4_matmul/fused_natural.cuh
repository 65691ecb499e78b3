// Parts of the fused kernel's loop where x comes in the order of its elements: codes rearranged,
// and the decoding of half a step. Device only, needs no torch.
//
// The tensor cores then want elements 2t and 2t + 1 of every eight in lane t of a quad: byte t of
// every word. So a warp first rearranges the codes of a step where they lie in shared memory, four
// words at a time: word t gets the bytes t, its nibbles in the order in which quick_pairs finds
// them. With the scales, of which every lane needs all, an instruction of the tensor cores costs 39
// others instead of 24 to 28. An image of x costs a kernel: 2 us at 128 rows of x, and more from
// there.
#pragma once

#include "fp4_matmul/fused_step.cuh"

namespace my_ops {

// Elements 2t of the four words, then 2t + 1, become the nibbles of word t.
__device__ __forceinline__ uint4 gather_bytes(const uint4& words) {
  constexpr uint32_t kLow = 0x0F0F0F0Fu;
  const uint32_t even_01 = (words.x & kLow) | (words.y << 4 & ~kLow);
  const uint32_t odd_01 = (words.x >> 4 & kLow) | (words.y & ~kLow);
  const uint32_t even_23 = (words.z & kLow) | (words.w << 4 & ~kLow);
  const uint32_t odd_23 = (words.z >> 4 & kLow) | (words.w & ~kLow);
  const uint32_t even_front = __byte_perm(even_01, even_23, 0x5140);
  const uint32_t even_back = __byte_perm(even_01, even_23, 0x7362);
  const uint32_t odd_front = __byte_perm(odd_01, odd_23, 0x5140);
  const uint32_t odd_back = __byte_perm(odd_01, odd_23, 0x7362);
  return {__byte_perm(even_front, odd_front, 0x5410), __byte_perm(even_front, odd_front, 0x7632),
          __byte_perm(even_back, odd_back, 0x5410), __byte_perm(even_back, odd_back, 0x7632)};
}

// Does that to a slot of codes in place, a quarter at a time. The words of a quarter are loaded
// before they are needed.
struct SlotRearranger {
  uint32_t place = 0;
  uint4 words;

  __device__ __forceinline__ void begin(uint32_t slot) {
    place = slot + threadIdx.x % 32 * 16;
    words = load_shared16(place);
  }

  __device__ __forceinline__ void do_quarter(int quarter) {
    const uint4 ready = gather_bytes(words);
    if (quarter < 3) words = load_shared16(place + (quarter + 1) * 512);
    store_shared16(place + quarter * 512, ready);
  }
};

// As HalfStep.
template <typename Tile>
struct NaturalHalfStep {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr bool kTwoScales = kMx && !std::is_same_v<scalar_t, __half>;
  const float factor;
  uint32_t low[4], high[4];  // the words of either row
  // NVFP4: two of the eight scales of either row, the other lanes of the quad have the others.
  // MXFP4: the bytes of all four.
  uint32_t low_scales, high_scales;
  // NVFP4: both scales of each word. MXFP4 as bfloat16: those of words 0 and 1, then of 2 and 3.
  uint32_t low_pairs[4], high_pairs[4];
  FittingScales<scalar_t> fitting;

  __device__ __forceinline__ explicit NaturalHalfStep(float factor) : factor(factor) {}

  // Rows have their chunks in different places (WeightRing), so that eight rows meet all banks.
  __device__ __forceinline__ void load(const WeightRing<Tile>&, uint32_t slot, int half) {
    const int lane = threadIdx.x % 32;
    const uint32_t codes = slot + lane / 4 * (128 + 16) + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = load_shared_bytes<4>(codes ^ (4 * half + i) * 16);
      high[i] = load_shared_bytes<4>((codes ^ (4 * half + i) * 16) + 1024);
    }
    constexpr int kBytes = kMx ? 4 : 2;
    const uint32_t scales = slot + Tile::kCodeBytes + lane / 4 * Tile::kScalePitch +
                            half * (Tile::kRowScales / 2) + (kMx ? 0 : lane % 4 * kBytes);
    low_scales = load_shared_bytes<kBytes>(scales);
    high_scales = load_shared_bytes<kBytes>(scales + 8 * Tile::kScalePitch);
  }

  __device__ __forceinline__ void begin() {
    if constexpr (!kMx) {
      const uint32_t of_low = nvfp4_scales<scalar_t>(low_scales, factor);
      const uint32_t of_high = nvfp4_scales<scalar_t>(high_scales, factor);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        low_pairs[w] = __shfl_sync(~0u, of_low, w, 4);
        high_pairs[w] = __shfl_sync(~0u, of_high, w, 4);
      }
    } else if constexpr (kTwoScales) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        low_pairs[i] = fitting.pair_of_two(__byte_perm(low_scales, 0, 0x4140 + i * 0x0202));
        high_pairs[i] = fitting.pair_of_two(__byte_perm(high_scales, 0, 0x4140 + i * 0x0202));
      }
    }
  }

  // The 32 codes of both rows as the operands A of two instructions.
  __device__ __forceinline__ void decode_word(int w, uint32_t (*fragments)[4]) {
    uint32_t first = low[w], second = high[w];
    asm volatile("" : "+r"(first), "+r"(second));  // as in HalfStep
    const auto decode_row = [&](uint32_t codes, uint32_t bytes, const uint32_t(&ready)[4],
                                uint32_t(&pairs)[4]) {
      uint32_t scales[2];  // of the first two pairs, of the others
      if constexpr (!kMx) {
        halves_twice(ready[w], scales);
      } else if constexpr (kTwoScales) {
        halves_twice(ready[w / 2], scales);
        scales[0] = scales[1] = scales[w % 2];
      } else {
        scales[0] = scales[1] = fitting.pair(codes, __byte_perm(bytes, 0, 0x4440 + w));
      }
      quick_pairs(scalar_t{}, codes, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = multiply_pairs(scalar_t{}, pairs[i], scales[i / 2]);
    };
    uint32_t a[4], b[4];
    decode_row(first, low_scales, low_pairs, a);
    decode_row(second, high_scales, high_pairs, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fragments[i / 2][i % 2 * 2] = a[i];
      fragments[i / 2][i % 2 * 2 + 1] = b[i];
    }
  }
};

}  // namespace my_ops
