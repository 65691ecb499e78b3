// How a warpgroup's sums become results in memory by way of boxes in shared memory, which the copy
// engine stores while the tensor cores are at the next tile. Device only, sm_90a, needs no torch.
//
// Lanes that store by themselves write 32 bytes of a row at a time, after a dozen exchanges between
// them: a tile of 128 x 256 then took 4850 cycles to end, of 65536. Now it takes 2500. Results that
// wait in registers and are stored between the next tile's steps gain no more than 0.4 %.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_wgmma.cuh"
#include "fp4_matmul/fp4_fragment.cuh"

namespace my_ops {

// A box: 64 rows of the weight by 64 of x, 128 bytes of either. A warpgroup fills two in turn.
constexpr int kOutputBox = 64, kOutputBoxBytes = kOutputBox * 128;
constexpr int kOutputStagingBytes = 2 * kOutputBoxBytes;

// Four 8 x 8 matrices of 16-bit elements, or their transposes, to shared memory: lane l has the
// address of row l % 8 of matrix l / 8.
template <bool kTranspose>
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&matrices)[4]) {
  if constexpr (kTranspose) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
        "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
        : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
  }
}

// The sums of a warpgroup, `warp` among those of the block: of 64 rows of the weight from first_n
// on and rows of x from first_m on. `writer`: StripWriter (fused_store.cuh). `map`: results along N
// (kAlongN) or along M in boxes of 64 rows.
template <typename result_t, bool kAlongN, typename Writer, int kSums>
__device__ __forceinline__ void store_boxes(const CUtensorMap& map, const Writer& writer,
                                            uint32_t staging, int warp, int first_n, int first_m,
                                            const float (&sums)[kSums]) {
  const int lane = threadIdx.x % 32;
  const bool issues = warp % 4 == 0 && lane == 0;
  const auto meet = [&] { asm volatile("bar.sync %0, 128;" ::"r"(2 + warp / 4) : "memory"); };
  const auto pair = [&](float low, float high, float bias) {
    return pack_pair(result_t{}, writer.scale(low) + bias, writer.scale(high) + bias);
  };
  // Matrices 0 and 1 are rows n and n + 8 of one strip of 8 rows of x, 2 and 3 those of the next.
  const int n_chunk = warp % 4 * 2 + lane / 8 % 2, m_chunk = lane / 16;
  const int row = (kAlongN ? m_chunk : n_chunk) * 8 + lane % 8;
#pragma unroll
  for (int box = 0; box < kSums / 32; ++box) {
    const uint32_t to = staging + box % 2 * kOutputBoxBytes;
    // Those of the tile before have been read for long.
    if (issues) box == 0 ? sm90::wait_for_box_reads<0>() : sm90::wait_for_box_reads<1>();
    meet();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const float* const sum = sums + box * 32 + s * 8;
      const uint32_t matrices[4] = {
          pair(sum[0], sum[1], writer.bias_low), pair(sum[2], sum[3], writer.bias_high),
          pair(sum[4], sum[5], writer.bias_low), pair(sum[6], sum[7], writer.bias_high)};
      const int at_row = kAlongN ? row + s * 16 : row, chunk = kAlongN ? n_chunk : m_chunk + 2 * s;
      store_matrices<kAlongN>(to + at_row * 128 + sm90::swizzled_chunk<128>(row % 8, chunk) * 16,
                              matrices);
    }
    sm90::fence_for_copies();
    meet();
    const int m = first_m + box * kOutputBox;
    if (issues) sm90::store_box(map, to, kAlongN ? m : first_n, kAlongN ? first_n : m);
  }
}

// Before a warpgroup's shared memory is gone.
__device__ __forceinline__ void finish_boxes() {
  if (threadIdx.x % 128 == 0) sm90::wait_for_box_reads<0>();
}

}  // namespace my_ops
