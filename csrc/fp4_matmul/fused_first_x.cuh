// The first stage of x of each depth group of the fused kernel, which consumers bring themselves
// while the image of the rest is made (x_image.cuh). Device only, sm_90a, needs no torch.
//
// The kernel in front that makes the image has waited for the one that made x, so that x itself can
// be read at once. The image can be read when all of it is written and that kernel has ended, 1 us
// later, and its first stage then takes 0.35 us.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "fp4_matmul/fused_work.cuh"
#include "fp4_matmul/shared_words.cuh"
#include "fp4_matmul/x_image.cuh"

namespace my_ops {

// A warp has units of 8 rows of x and 128 along K of its group's stage; in them lane t of a quad
// has what it has in write_image().
template <typename Tile>
class FirstX {
 public:
  // Stages that come in this way: the first of each depth group.
  static constexpr int kStages = Tile::kDepthGroups;
  static_assert(Tile::kDepthGroups == 1 || Tile::kStagesOfStep == 1, "the first ones of the block");

  __device__ __forceinline__ void load(const FusedArguments& args, const FusedWork& work,
                                       int warp) {
    const int lane = threadIdx.x % 32, group = warp / Tile::kRowWarps;
    const int step_k = (work.first_step + group) * kFusedDepth;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int unit = warp % Tile::kRowWarps + i * Tile::kRowWarps;
      const int64_t m = int64_t{work.token_tile} * Tile::kTokens + unit / kDeep * 8 + lane / 4;
      const uint16_t* const from =
          args.x.data + m * args.x.row_stride + step_k + image_first_k(unit % kDeep, lane % 4);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        // Not by way of L1, which may have what lay there before.
        words_[i][w] = m < args.out.M ? __ldcg(reinterpret_cast<const uint4*>(from) + w) : uint4{};
      }
    }
  }

  // Until all warps of the group have stored theirs.
  __device__ __forceinline__ void store(uint32_t base, int warp) const {
    const int lane = threadIdx.x % 32, group = warp / Tile::kRowWarps;
    constexpr int kBlock = Tile::kTokens * 128;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int unit = warp % Tile::kRowWarps + i * Tile::kRowWarps;
      const int row = lane / 4;
      const uint32_t to = base + group * Tile::kStageBytes + unit % kDeep * 2 * kBlock +
                          (unit / kDeep * 8 + row) * 128 + lane % 4 * 4;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint4 pairs = pair_order(words_[i][w]);
        const uint32_t each[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int chunk = sm90::swizzled_chunk<128>(row, w % 2 * 4 + j);
          store_shared4(to + w / 2 * kBlock + chunk * 16, bits_float(each[j]));
        }
      }
    }
    sm90::fence_for_copies();
    asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(Tile::kRowThreads) : "memory");
  }

 private:
  static constexpr int kDeep = Tile::kStageDepth / kImageDepth;
  static constexpr int kEach = Tile::kTokens / 8 * kDeep / Tile::kRowWarps;
  uint4 words_[kEach][4];
};

// Whether x comes in this way: where it lies so that it can be read by vectors, which an x that was
// FP4 does not.
template <typename Tile>
__device__ __forceinline__ bool x_comes_first(const FusedArguments& args) {
  return Tile::kWeightBoxes && args.x.vectors && args.variant != 0;
}

}  // namespace my_ops
