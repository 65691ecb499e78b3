// Blocks of an MXFP4 weight whose scales do not fit 16 bits, added to a warp's sums: their scales
// multiply sums of 32 products, in float32. Device only, needs no torch.
//
// Weights have them rarely. Kernels multiply them by what fits, kE8M0Taken, and remember that there
// was one (FittingScales); the warp that has met one then looks for them and adds what is missing,
// from memory: 1 us and more for each, against 3 to 9 us that a launch took that only looked.
#pragma once

#include "fp4_matmul/fp4_e8m0.cuh"
#include "fp4_matmul/opaque.cuh"

namespace my_ops {

// The 16 rows of a warp, and its steps of K: from first_k on, stride_k apart, below end_k. In a
// step it has `blocks` of 32, block_stride apart.
struct BlockRows {
  static constexpr int kStep = 256;

  const uint8_t* codes;  // of the first row
  const uint8_t* scales;
  int K, first_k, end_k, stride_k;
  int blocks, block_stride;
  uint32_t code_bytes, scale_bytes;  // of a row
  int last = 15;                     // the last row that there is
  // Which of 32 blocks comes first. Warps that read the same part of x wait for each other: where
  // all blocks are missing, 512 rows of x and 8192 x 8192, 3.6 ms, and 1.9 in turn.
  int turn;

  __device__ __forceinline__ BlockRows(const uint8_t* codes, const uint8_t* scales, int64_t first_n,
                                       int64_t K, int first_k, int end_k, int stride_k,
                                       int blocks = kStep / 32, int block_stride = 32)
      : codes(codes + first_n * (K / 2)),
        scales(scales + first_n * ((K + 31) / 32)),
        K(static_cast<int>(K)),
        first_k(first_k),
        end_k(min(end_k, static_cast<int>(K))),
        stride_k(stride_k),
        blocks(blocks),
        block_stride(block_stride),
        code_bytes(static_cast<uint32_t>(K) / 2),
        scale_bytes((static_cast<uint32_t>(K) + 31) / 32),
        turn(static_cast<int>(first_n / 16 % 32)) {}

  // The first element of block `number` of those in the steps.
  __device__ __forceinline__ int block_k(int number) const {
    return first_k + number / blocks * stride_k + number % blocks * block_stride;
  }
};

// What is missing of the products with a row's block, in two factors: sums of products are 2^-8 of
// theirs, so that 32 of six and the largest bfloat16 do not overflow and those of a half and its
// smallest are exact; what they are added to is 2^-5 of it.
struct MissingScale {
  bool any;
  float first, second;

  __device__ __forceinline__ MissingScale(bool any, float scale)
      : any(any), first(scale < 8.0f ? scale : 8.0f), second(scale < 8.0f ? 8.0f : scale) {}
  __device__ __forceinline__ void add(float& sum, float products) const {
    if (any) sum = fmaf(products * first, second, sum);
  }
};

// sums[4 s] to [4 s + 3] are mma's of strip s of eight rows of x, of which x(s, k) gives lane
// 4 g + t the elements k to k + 8 of row g in the order of decoded codes. kSomeRows: not all of the
// 16 rows may be there; the last one then stands for those that are not.
template <typename scalar_t, int kStrips, bool kSomeRows = false, typename X>
__device__ __forceinline__ void add_missing_blocks(float (&sums)[4 * kStrips],
                                                   const BlockRows& rows, const X& x) {
  const int lane = opaque(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const uint32_t scale = e8m0_pair(scalar_t{}, 127 - 3);  // 2^-8 of the codes
  const auto there = [&rows](int row) { return kSomeRows ? min(row, rows.last) : row; };
  // An infinity in x may have met a zero that was taken for a scale. Then all is added once more.
  bool all = false;
  if constexpr (kE8M0Taken<scalar_t> == 0.0f) {
#pragma unroll
    for (int i = 0; i < 4 * kStrips; ++i) all |= sums[i] != sums[i];
    all = __any_sync(~0u, all);
#pragma unroll
    for (int i = 0; i < 4 * kStrips; ++i) sums[i] = all ? 0.0f : sums[i];
  }
  const auto missing = [all](uint32_t byte) {
    const float taken = all ? 0.0f : kE8M0Taken<scalar_t>;
    return MissingScale(all || !e8m0_fits<scalar_t>(byte), e8m0_decode(byte) - taken);
  };

#pragma unroll 1
  for (int first = 0; rows.block_k(first) < rows.end_k; first += 32) {
    const int lane_k = rows.block_k(first + lane);
    bool wanted = all;
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      const int k = min(lane_k, rows.end_k - 1);
      wanted |= !e8m0_fits<scalar_t>(rows.scales[there(r) * rows.scale_bytes + k / 32]);
    }
    const uint32_t found = __ballot_sync(~0u, wanted && lane_k < rows.end_k);
    uint32_t left = __funnelshift_r(found, found, rows.turn);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const int k = rows.block_k(first + (__ffs(static_cast<int>(left)) - 1 + rows.turn) % 32);
      const uint8_t* const bytes = rows.scales + (there(g) * rows.scale_bytes + k / 32);
      const MissingScale low = missing(bytes[0]);
      const MissingScale high = missing(bytes[(there(g + 8) - there(g)) * rows.scale_bytes]);
      // A lane has a word of the block; past K it has zeros.
      const int word_k = k + 8 * t;
      const bool within = word_k < rows.K;
      const auto* const codes = reinterpret_cast<const uint32_t*>(
          rows.codes + (there(g) * rows.code_bytes + (within ? word_k / 2 : 0)));
      const uint32_t to_high =
          kSomeRows ? (there(g + 8) - there(g)) * (rows.code_bytes / 4) : 2 * rows.code_bytes;
      uint32_t a[4], b[4];
      decode<scalar_t>(within ? codes[0] : 0, scale, a);
      decode<scalar_t>(within ? codes[to_high] : 0, scale, b);
      // Loads of x on their way together. Of few strips one at a time: their kernels have no
      // registers left.
      constexpr int kAtOnce = kStrips < 8 ? 1 : 8;
#pragma unroll
      for (int first_s = 0; first_s < kStrips; first_s += kAtOnce) {
        uint4 v[kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) v[s] = x(first_s + s, word_k);
        asm volatile("" ::: "memory");
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
          float* const sum = sums + 4 * (first_s + s);
          float products[4] = {};
          mma(scalar_t{}, products, a[0], b[0], a[1], b[1], v[s].x, v[s].y);
          mma(scalar_t{}, products, a[2], b[2], a[3], b[3], v[s].z, v[s].w);
          low.add(sum[0], products[0]);
          low.add(sum[1], products[1]);
          high.add(sum[2], products[2]);
          high.add(sum[3], products[3]);
        }
      }
    }
  }
}

}  // namespace my_ops
