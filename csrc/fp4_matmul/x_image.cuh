// x [M, K] as the fused kernel wants it in shared memory: per tile of `tokens` rows and 128 along
// K (ImagePlace) two blocks [tokens, 64] with the hardware's 128-byte swizzle, elements in the
// order in which codes are decoded (fp4_fragment.cuh), zeros past M and K. Device only, needs no
// torch.
#pragma once

#include <cstdint>

#include "common/ceil_div.h"
#include "common/overlap.cuh"
#include "common/sm90_wgmma.cuh"
#include "fp4_matmul/dense_rows.cuh"
#include "fp4_matmul/fp4_e8m0.cuh"
#include "fp4_matmul/mail_room.cuh"
#include "fp4_matmul/quad.cuh"

namespace my_ops {

constexpr int kImageDepth = 128;
// Where the 32 elements of K that k is one of lie: in which step, in which lane of a quad. A lane
// has 64 of two steps, half of these in each, as it has codes (HalfStep).
struct ImagePlace {
  int step, lane;
};

__host__ __device__ constexpr ImagePlace image_place(int k) {
  return {k / 256 * 2 + k % 64 / 32, k % 256 / 64};
}

// The first of the 32 that a lane has of a step.
__host__ __device__ constexpr int image_first_k(int step, int lane) {
  return step / 2 * 256 + lane * 64 + step % 2 * 32;
}

constexpr int kImageThreads = 128, kImageSteps = kImageThreads / 4;  // a quad of lanes for a step

struct ImageLayout {
  uint8_t* image;
  int64_t M;
  int K;
  int steps;   // of kImageDepth along K
  int tokens;  // rows of a tile
  MailRoom mail;

  __host__ __device__ int64_t padded_rows() const { return (M + tokens - 1) / tokens * tokens; }
  __host__ __device__ int64_t bytes() const { return padded_rows() * steps * kImageDepth * 2; }
  // Rows of blocks along K, and below them those that prepare the mail room, nine words a thread.
  __host__ __device__ int block_rows() const { return (steps + kImageSteps - 1) / kImageSteps; }
  __host__ dim3 blocks() const {
    const int64_t rows = padded_rows();
    const int64_t mail_rows = ceil_div(mail.words_to_prepare(), 9 * kImageThreads * rows);
    return {static_cast<unsigned>(rows), static_cast<unsigned>(block_rows() + mail_rows)};
  }

  // The first chunk of row m at a step; where the others lie depends on the swizzle.
  __device__ __forceinline__ uint8_t* row(unsigned m, int step) const {
    const unsigned tile = m / tokens;
    return image + ((int64_t{tile} * steps + step) * 2 * tokens + (m - tile * tokens)) * 128;
  }
};

// A quad of lanes brings the 128 elements of one row and step (image_first_k): `words`
// gives 8 elements in the order of decoded codes.
template <typename Words>
__device__ __forceinline__ void write_image(const ImageLayout& layout, Words&& words) {
  const unsigned m = blockIdx.x;
  const int step = blockIdx.y * kImageSteps + threadIdx.x / 4, t = threadIdx.x % 4;
  const int k0 = image_first_k(step, t);
  uint8_t* row = layout.row(m, step);
  asm volatile("" : "+l"(row));  // computed now, not when x is here
  // In this order: what the fused kernel reads early, the weight, is then as old as x.
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (static_cast<int>(blockIdx.y) >= layout.block_rows()) {
    const unsigned above = gridDim.x * layout.block_rows();
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x - above;
    layout.mail.prepare(block * kImageThreads + threadIdx.x,
                        (gridDim.x * gridDim.y - above) * kImageThreads);
    return;
  }
  uint4 pairs[4] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (m < layout.M && k0 + w * 8 < layout.K) pairs[w] = words(m, k0 + w * 8);
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint4 chunk = transpose_in_quad(pairs[w]);
    const int at = sm90::swizzled_chunk<128>(m % 8, w % 2 * 4 + t);
    if (step < layout.steps) {
      *reinterpret_cast<uint4*>(row + w / 2 * layout.tokens * 128 + at * 16) = chunk;
    }
  }
}

template <bool kVectors>
__global__ void __launch_bounds__(kImageThreads)
    dense_image_kernel(const ImageLayout layout, const DenseRows x) {
  write_image(layout, [&](int64_t m, int k) {
    if constexpr (kVectors) {
      return pair_order(*reinterpret_cast<const uint4*>(x.data + m * x.row_stride + k));
    } else {
      return pair_order(load_elements(x, layout.K, m, k));
    }
  });
}

// x in the order of its elements, row after row, in `chunks` of 16 bytes: for the copy engine,
// where it cannot read x itself.
__global__ void __launch_bounds__(kImageThreads)
    dense_rows_kernel(uint4* rows, int64_t chunks, int K, const DenseRows x) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t chunk = blockIdx.x * int64_t{kImageThreads} + threadIdx.x;
  const int64_t m = chunk / (K / 8);
  const int k = static_cast<int>(chunk % (K / 8)) * 8;
  if (chunk < chunks) rows[chunk] = load_elements(x, K, m, k);
}

// x in FP4, rows of codes at multiples of 4 bytes. NVFP4 becomes float16, 2^-14 of the codes times
// block scales; MXFP4 becomes bfloat16.
struct PackedRows {
  const uint8_t* codes;
  const uint8_t* scales;
};

template <Fp4Format kFormat>
__global__ void __launch_bounds__(kImageThreads)
    packed_image_kernel(const ImageLayout layout, const PackedRows x) {
  constexpr int kBlock = fp4_block_size(kFormat);
  write_image(layout, [&](int64_t m, int k) {
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(x.codes + m * (layout.K / 2) + k / 2);
    const int row_scales = (layout.K + kBlock - 1) / kBlock;
    const uint32_t scale = x.scales[m * row_scales + k / kBlock];
    uint32_t pairs[4];
    if constexpr (kFormat == Fp4Format::nvfp4) {
      uint32_t scales[2];
      nvfp4_scale_pairs<__half>(scale, 1.0f, scales);
      decode<__half>(codes, scales[0], pairs);
    } else {
      decode_wide(codes, scale, pairs);
    }
    return uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  });
}

}  // namespace my_ops
