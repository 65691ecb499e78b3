// E8M0 scales as 16-bit factors of FP4 codes. Device only, needs no torch.
//
// e8m0_fits says where one multiplication is exact (fp4_fragment.cuh). Kernels make it of all
// scales, remember whether one did not fit, and add what then is missing (missing_blocks.cuh).
#pragma once

#include "fp4_matmul/fp4_fragment.cuh"

namespace my_ops {

// E8M0: what fits of 2^9 (float16) or 2^121 (bfloat16) times the scale, up to 2^6 in both.
constexpr uint32_t kE8M0MostFit = 133;
template <typename scalar_t>
constexpr uint32_t kE8M0LeastFit = std::is_same_v<scalar_t, __half> ? 109 : 0;

template <typename scalar_t>
__device__ __forceinline__ bool e8m0_fits(uint32_t byte) {
  return byte - kE8M0LeastFit<scalar_t> <= kE8M0MostFit - kE8M0LeastFit<scalar_t>;
}
__device__ __forceinline__ uint32_t e8m0_pair(__half, uint32_t byte) {
  return (byte - 103u) * 0x04000400u;
}
__device__ __forceinline__ uint32_t e8m0_pair(__nv_bfloat16, uint32_t byte) {
  return (byte + 121u) * 0x00800080u;
}

// What kernels multiply a block by whose scale does not fit. bfloat16 takes the largest that does,
// of which any other is a part; float16 nothing, as the smallest that fits may be larger.
template <typename scalar_t>
constexpr float kE8M0Taken = std::is_same_v<scalar_t, __half> ? 0.0f : 0x1p6f;

// What float16 takes for a scale that it does not hold, where that is not looked at.
__device__ __forceinline__ uint32_t e8m0_nearest_fit(uint32_t byte) {
  return min(max(byte, kE8M0LeastFit<__half>), kE8M0MostFit);
}

// Makes pairs of a lane's E8M0 scales, with what kE8M0Taken says for those that do not fit, and
// remembers whether there were such: without a branch, for which a loop of tensor cores'
// instructions has no time (25.6 us at 64 rows of x, 8192 x 8192, for 22.3).
template <typename scalar_t>
class FittingScales {
 public:
  // `codes`: the lane's of the scale's block, combined by OR. Zeros, which are quantized with the
  // smallest scale, may have any but NaN in float16; bfloat16 holds the smallest.
  __device__ __forceinline__ uint32_t pair(uint32_t codes, uint32_t byte) {
    bytes_ |= byte;
    if constexpr (std::is_same_v<scalar_t, __half>) {
      const bool fits = e8m0_fits<__half>(byte);
      if (!fits) codes_ |= codes;
      return fits ? e8m0_pair(__half{}, byte) : 0;
    } else {
      return e8m0_pair(__nv_bfloat16{}, min(byte, kE8M0MostFit));
    }
  }
  // bfloat16: two scales, in the halves of `bytes`, as the halves of a pair, by as many
  // instructions as one takes. With quick_pairs 38.65 us for 39.5 at 192 rows of x, 8192 x 8192.
  __device__ __forceinline__ uint32_t pair_of_two(uint32_t bytes) {
    static_assert(!std::is_same_v<scalar_t, __half>, "which has to look at the codes");
    bytes_ |= bytes;
    constexpr uint32_t kBoth = 0x00010001u;
    return __vminu2(bytes, kE8M0MostFit * kBoth) * 0x0080u + (121u << 7) * kBoth;
  }
  // What is cheap to know: also false where scales of two and more fit.
  __device__ __forceinline__ bool all_fit() const {
    return (bytes_ & 0x00800080u) == 0 && (codes_ & 0x77777777u) == 0;
  }

 private:
  uint32_t bytes_ = 0, codes_ = 0;  // of all scales, of those that do not fit, combined by OR
};

// The scale itself, which bfloat16 always holds.
__device__ __forceinline__ uint32_t e8m0_bf16_pair(uint32_t byte) {
  return (byte == 0 ? 0x0040u : (byte == kE8M0NaN ? 0x7FC0u : byte << 7)) * 0x00010001u;
}

// Eight codes times any E8M0 scale and 2^(kExponent - 126): in bfloat16, by two multiplications.
template <uint32_t kExponent = 126>
__device__ __forceinline__ void decode_wide(uint32_t codes, uint32_t byte, uint32_t (&pairs)[4]) {
  constexpr uint32_t kBias = (kExponent + 127) * 0x00800080u;
  code_pairs(__nv_bfloat16{}, codes, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = multiply_pairs(__nv_bfloat16{}, multiply_pairs(__nv_bfloat16{}, pairs[i], kBias),
                              e8m0_bf16_pair(byte));
  }
}

}  // namespace my_ops
