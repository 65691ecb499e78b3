// What the fused kernel's sums lack where an E8M0 scale does not fit 16 bits, added from memory.
// Device only, sm_90a, needs no torch.
#pragma once

#include "common/sm90_wgmma.cuh"
#include "fp4_matmul/fused_work.cuh"
#include "fp4_matmul/missing_blocks.cuh"
#include "fp4_matmul/x_image.cuh"

namespace my_ops {

// Adds what a warp's sums of a work lack, with x from where the producers find it.
template <typename Tile>
__device__ __forceinline__ void add_missing(float (&sums)[Tile::kAccumulators],
                                            const FusedArguments& args, const FusedWork& work,
                                            int first_n, int group) {
  static_assert(kFusedDepth == BlockRows::kStep);
  const int K = opaque(static_cast<int>(args.out.K)), lane = opaque(threadIdx.x % 32);
  BlockRows rows(args.codes, args.scales, first_n, K, (work.first_step + group) * kFusedDepth,
                 work.end_step * kFusedDepth, kFusedDepth * Tile::kDepthGroups);
  if constexpr (Tile::kRagged) rows.last = min(static_cast<int>(args.out.N) - first_n, 16) - 1;
  const int64_t first_token = int64_t{work.token_tile} * Tile::kTokens;
  const auto x = [&](int strip, int k) {
    if (!Tile::kTakesMap && args.image != nullptr) {
      // Chunk 4 w + i of 128 elements has pair i of the words w of all four lanes (x_image.cuh).
      const int row = strip * 8 + lane / 4, word = k % 32 / 8;
      const ImagePlace place = image_place(k);
      const uint8_t* const half =
          args.image +
          ((int64_t{work.token_tile} * args.steps * 4 + place.step * 2 + word / 2) * Tile::kTokens +
           row) *
              128;
      const auto pair = [&](int i) {
        const int chunk = sm90::swizzled_chunk<128>(lane / 4, word % 2 * 4 + i);
        return reinterpret_cast<const uint32_t*>(half + chunk * 16)[place.lane];
      };
      return uint4{pair(0), pair(1), pair(2), pair(3)};
    }
    const int64_t m = min(first_token + strip * 8 + lane / 4, args.out.M - 1);
    const auto* const from = args.x.data + m * args.x.row_stride + k;
    return pair_order(k < K ? *reinterpret_cast<const uint4*>(from) : uint4{});
  };
  add_missing_blocks<typename Tile::scalar_t, Tile::kStrips, Tile::kRagged>(sums, rows, x);
}

}  // namespace my_ops
