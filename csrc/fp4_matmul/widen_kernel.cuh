// A packed matrix in 16 bits, row after row: code * block scale, exact, times the power of two of
// fp4_fragment.cuh. Device only, needs no torch.
//
// n = 4096 takes 12.5 us on an H200. To widen most of it in the product, by warps that have nothing
// else to do there, takes as long: 178.4 us for both instead of 179.2.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "fp4_matmul/fp4_e8m0.cuh"

namespace my_ops {

constexpr int kWidenThreads = 256, kWidenWords = 4;  // of eight codes, for a thread

struct WidenArguments {
  const uint32_t* codes;  // rows are a multiple of eight codes long
  const uint8_t* scales;  // [rows, scale_cols]
  const float* amax;
  uint4* wide;
  uint32_t words, words_in_row, scale_cols;
};

// Eight elements of 16 bits from the order of the pairs to the order of the codes.
__device__ __forceinline__ uint4 code_order(const uint32_t (&pairs)[4]) {
  return {__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410),
          __byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[2], pairs[3], 0x7632)};
}

template <typename scalar_t, Fp4Format kFormat>
__global__ void __launch_bounds__(kWidenThreads) widen_kernel(const WidenArguments args) {
  constexpr uint32_t kWordsOfScale = fp4_block_size(kFormat) / 8;
  let_next_kernel_start();
  const uint32_t first = blockIdx.x * (kWidenThreads * kWidenWords) + threadIdx.x;
  const float factor = fragment_scale<scalar_t, kFormat>(args.amax).scale_factor;
  uint32_t codes[kWidenWords], scales[kWidenWords];
#pragma unroll
  for (int w = 0; w < kWidenWords; ++w) {
    const uint32_t word = min(first + w * kWidenThreads, args.words - 1);
    const uint32_t row = word / args.words_in_row, in_row = word - row * args.words_in_row;
    codes[w] = args.codes[word];
    scales[w] = args.scales[int64_t{row} * args.scale_cols + in_row / kWordsOfScale];
  }
#pragma unroll
  for (int w = 0; w < kWidenWords; ++w) {
    const uint32_t word = first + w * kWidenThreads;
    uint32_t pairs[4];
    if constexpr (kFormat == Fp4Format::nvfp4) {
      uint32_t scale[2];
      nvfp4_scale_pairs<scalar_t>(scales[w], factor, scale);
      decode<scalar_t>(codes[w], scale[0], pairs);
    } else if constexpr (std::is_same_v<scalar_t, __half>) {
      // Others than these are of blocks of zeros, or flags have been set (find_misfits.cuh).
      decode<__half>(codes[w], e8m0_pair(__half{}, e8m0_nearest_fit(scales[w])), pairs);
    } else {
      decode_wide(codes[w], scales[w], pairs);
    }
    if (word < args.words) args.wide[word] = code_order(pairs);
  }
  // Launched beside the kernel in front, this one needs nothing of it, but must not end before it:
  // the kernel behind waits for this one alone.
  if (blockIdx.x == 0) wait_for_previous_kernel();
}

}  // namespace my_ops
