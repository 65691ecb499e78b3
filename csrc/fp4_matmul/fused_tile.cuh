// The arguments, tiles and memory of the fused kernel (fused_kernel.cuh). Device only, needs no
// torch.
#pragma once

#include "fp4_matmul/fp4_fragment.cuh"
#include "fp4_matmul/product_output.cuh"
#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

constexpr int kFusedDepth = 128;  // of K in one step

struct FusedArguments {
  const uint8_t* codes;   // [N, K / 2], rows start at multiples of 16 bytes
  const uint8_t* scales;  // [N, K / block], of 4 bytes
  const float* amax;      // null: no global scale
  const uint8_t* image;   // x, see x_image.cuh
  const float* x_amax;    // the global scale of an x that was FP4; null: none
  bool x_is_nvfp4;
  const int* misfits;  // not all zero: nothing is computed; null: no such test
  ProductOutput out;   // [M, N]
  int steps;
  int row_tiles;    // of the weight
  int token_tiles;  // of x
  int splits;       // blocks of a cluster, each with a part of K
  bool direct;      // results go from registers to memory: one block a tile, dense pairs of 16 bits
};

// A block owns 64 * kRowGroups rows of the weight and kTokens rows of x. kDepthGroups warpgroups
// share the steps of the same rows.
template <typename scalar_t_, Fp4Format kFormat_, int kTokens_, int kRowGroups_, int kDepthGroups_,
          int kStages_, int kSlots_>
struct FusedTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr int kTokens = kTokens_, kStages = kStages_, kSlots = kSlots_;
  static constexpr int kRowGroups = kRowGroups_, kDepthGroups = kDepthGroups_;
  static constexpr int kRows = 64 * kRowGroups;
  static constexpr int kRowThreads = 128 * kRowGroups;
  static constexpr int kConsumers = kRowThreads * kDepthGroups;
  static constexpr int kThreads = kConsumers + 128;
  // What setmaxnreg leaves to a consumer; the producer keeps 24.
  static constexpr int kRegisters = kConsumers == 256 ? 240 : (kConsumers == 384 ? 160 : 112);
  static constexpr int kAccumulators = kTokens / 2;
  static constexpr int kStrips = kAccumulators / 4;  // of 8 rows of x

  static constexpr int kStageBytes = kTokens * kFusedDepth * 2;
  static constexpr int kCodeBytes = 16 * kFusedDepth / 2;
  static constexpr int kScaleBytes = 16 * kFusedDepth / fp4_block_size(kFormat);
  static constexpr int kSlotBytes = kCodeBytes + kScaleBytes;
  static constexpr int kBarriers = kStages * kStageBytes;  // where they begin
  static constexpr int kRings = kBarriers + 128;
  static constexpr int kSharedBytes = kRings + kConsumers / 32 * kSlots * kSlotBytes;
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");
  static_assert(kConsumers * kAccumulators * 4 <= kBarriers, "the stages hold all sums");
  static_assert(16 * kStages <= 128, "two barriers a stage");
};

// A warp's ring of codes and scales of its 16 rows: slots that the warp fills with asynchronous
// copies of its own, kSlots - 1 steps ahead, past the end of a tile too.
template <typename Tile>
struct WeightRing {
  static constexpr int kBlock = fp4_block_size(Tile::kFormat);
  static constexpr int kScaleWords = Tile::kScaleBytes / 64;  // of 4 bytes, in a row

  const FusedArguments& args;
  uint8_t* const slots;
  const int warp_row;              // of the tile
  const int first_step, end_step;  // of every tile; every kDepthGroups-th is this warp's
  const int works, next_work;      // tiles, and how far apart a block's are
  int work, step;
  int write_slot = 0, read_slot = 0;
  const uint8_t *low = nullptr, *high = nullptr, *scales = nullptr;  // this lane's rows

  __device__ __forceinline__ void fetch() {
    const int lane = threadIdx.x % 32;
    if (work < works) {
      if (step == first_step) aim();
      uint8_t* const slot = slots + write_slot * Tile::kSlotBytes;
      const int k = step * kFusedDepth, K = static_cast<int>(args.out.K);
      const bool in_k = k + lane % 4 * 32 < K;
      const int offset = in_k ? k / 2 : -(lane % 4 * 16);
      copy_async<16>(slot + lane * 16, low + offset, in_k ? 16 : 0);
      copy_async<16>(slot + 512 + lane * 16, high + offset, in_k ? 16 : 0);
      if (lane < 16 * kScaleWords) {
        const bool scale_in_k = k + lane % kScaleWords * 4 * kBlock < K;
        copy_async<4>(slot + Tile::kCodeBytes + lane * 4,
                      scales + (scale_in_k ? k / kBlock : -(lane % kScaleWords * 4)),
                      scale_in_k ? 4 : 0);
      }
      step += Tile::kDepthGroups;
      if (step >= end_step) {
        step = first_step;
        work += next_work;
      }
    }
    write_slot = write_slot == Tile::kSlots - 1 ? 0 : write_slot + 1;
    copy_async_commit();
  }

  // Rows past N repeat the last one; what comes of them is not stored.
  __device__ __forceinline__ void aim() {
    const int lane = threadIdx.x % 32;
    const int last = static_cast<int>(args.out.N) - 1;
    const int n = work / args.token_tiles * Tile::kRows + warp_row;
    const int64_t code_bytes = args.out.K / 2, scale_bytes = args.out.K / kBlock;
    low = args.codes + min(n + lane / 4, last) * code_bytes + lane % 4 * 16;
    high = args.codes + min(n + lane / 4 + 8, last) * code_bytes + lane % 4 * 16;
    scales =
        args.scales + min(n + lane / kScaleWords % 16, last) * scale_bytes + lane % kScaleWords * 4;
  }

  // The oldest slot, when its bytes are there.
  __device__ __forceinline__ const uint8_t* next() {
    copy_async_wait<Tile::kSlots - 2>();
    __syncwarp();
    const uint8_t* const slot = slots + read_slot * Tile::kSlotBytes;
    read_slot = read_slot == Tile::kSlots - 1 ? 0 : read_slot + 1;
    return slot;
  }
};

}  // namespace my_ops
