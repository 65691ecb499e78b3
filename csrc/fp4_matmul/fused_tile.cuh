// The arguments, tiles and memory of the fused kernel (fused_kernel.cuh), and how the weight comes
// into it. Device only, needs no torch.
#pragma once

#include <cuda.h>

#include "fp4_matmul/box_output.cuh"
#include "fp4_matmul/dense_rows.cuh"
#include "fp4_matmul/fp4_fragment.cuh"
#include "fp4_matmul/fused_plan.h"
#include "fp4_matmul/mail_room.cuh"
#include "fp4_matmul/product_output.cuh"
#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

// What a block reads first comes first: a launch finds every line of its parameters uncached.
struct FusedArguments {
  const uint8_t* image;   // x, see x_image.cuh; null: x comes in one of the ways below
  const uint8_t* codes;   // [N, K / 2], rows start at multiples of 16 bytes; ragged: of 8
  const uint8_t* scales;  // [N, ceil(K / block)], of 4 bytes; ragged: the first row
  const float* amax;      // null: no global scale
  const float* x_amax;    // the global scale of an x that was FP4; null: none
  bool x_is_nvfp4;
  bool scale_vectors;  // scales of a step start at multiples of their size
  bool vectors;        // results can be stored as aligned vectors of 16 bytes (store_all)
  int steps;
  int token_tiles;   // of x
  int splits;        // blocks of a cluster, each with a part of K
  int sharers;       // blocks of a cluster, each with rows of the weight of its own
  int row_clusters;  // tiles of the weight, those of sharers as one
  int tail;          // number of the first work that is half of K (FusedWorks); of works: none is
  int works;
  int part_begin[kFusedSplits * kFusedParts + 1];  // the step with which a block's part begins
  MailRoom mail;                                   // where several clusters have a tile
  ProductOutput out;                               // [M, N]
  DenseRows x;        // [M, K], where x comes from its rows or by the copy engine
  CUtensorMap x_map;  // the same in boxes of 64 columns, for the copy engine
  CUtensorMap y_map;  // out, where tiles have the copy engine store it (kBoxes)
};

// A block owns 128 rows of the weight and kTokens rows of x. kDepthGroups groups of two warpgroups
// share its steps. Stages of kStageDepth along K hold x. kWords words of either row are decoded for
// the tensor cores at a time, into kBuffers sets of registers in turn. kMail: several clusters have
// a tile, each with a part of K. kBoxes: results go by way of shared memory (box_output.cuh).
template <typename scalar_t_, Fp4Format kFormat_, int kTokens_, int kStageDepth_, int kStages_,
          int kSlots_, int kWords_, int kBuffers_, bool kRagged_, bool kMail_ = false,
          bool kBoxes_ = false>
struct FusedTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr bool kRagged = kRagged_, kMail = kMail_, kBoxes = kBoxes_;
  static constexpr int kTokens = kTokens_, kDepthGroups = fused_depth_groups(kTokens);
  static constexpr bool kTakesRows = fused_takes_rows(kTokens);
  static constexpr bool kTakesMap = fused_takes_map(kTokens, kRagged);
  static constexpr int kMostSplits = fused_most_splits(kTokens);
  static constexpr int kStageDepth = kStageDepth_, kStages = kStages_, kSlots = kSlots_;
  static constexpr int kRows = kFusedRows, kRowWarps = kRows / 16, kRowThreads = 32 * kRowWarps;
  static constexpr int kConsumers = kRowThreads * kDepthGroups;
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kAccumulators = kTokens / 2;
  static constexpr int kStrips = kAccumulators / 4;  // of 8 rows of x
  static constexpr int kWords = kWords_, kBuffers = kBuffers_;
  // Codes come into registers while the tensor cores work on those before: 1.5 us faster at 128 and
  // 256 rows of x, 8192 x 8192. With fewer there are no registers for it.
  static constexpr bool kLoadsAhead = kTokens >= 64;
  // setmaxnreg: what a consumer and a producer get of the 168 or 96 that each thread starts with.
  static constexpr int kRegisters = kConsumers == 256 ? 232 : 112;
  static constexpr int kProducerRegisters = kConsumers == 256 ? 40 : 32;

  static constexpr int kStagesOfStep = kFusedDepth / kStageDepth;
  static constexpr int kStageBytes = kTokens * kStageDepth * 2;
  static constexpr int kCodeBytes = 16 * kFusedDepth / 2;
  static constexpr int kRowScales = kFusedDepth / fp4_block_size(kFormat);  // bytes of a step
  static constexpr int kScalePitch = kRowScales + scale_padding(kRagged);
  static constexpr int kSlotBytes = kCodeBytes + (16 * kScalePitch + 127) / 128 * 128;
  // Where results that go as boxes and the barriers begin.
  static constexpr int kStaging = kStages * kStageBytes;
  static constexpr int kBarriers = kStaging + (kBoxes ? kConsumers / 128 * kOutputStagingBytes : 0);
  static constexpr int kRings = kBarriers + 256;
  static constexpr int kSharedBytes = kRings + kConsumers / 32 * kSlots * kSlotBytes;
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");
  static_assert(16 * kStages + 8 + 8 * ((kStrips / 2 + 1) / 2) <= 256,
                "two a stage, those of an exchange");
};

// A warp's ring of codes and scales of its 16 rows: slots that the warp fills with asynchronous
// copies of its own, kSlots - 1 steps ahead. A step is 128 bytes of every row: with half of that
// the copies alone take 13.9 us at 8192 x 8192, with these 10.5.
template <typename Tile>
struct WeightRing {
  static constexpr int kBlock = fp4_block_size(Tile::kFormat);
  static constexpr int kRowScales = Tile::kRowScales;
  static constexpr int kUnitBytes = Tile::kRagged ? 8 : 16;  // of codes, in a copy
  static constexpr int kUnits = kFusedDepth / 2 / kUnitBytes, kRowsAtOnce = 32 / kUnits;

  const FusedArguments& args;
  const uint32_t slots;                               // shared address
  const uint8_t *codes = nullptr, *scales = nullptr;  // of the warp's rows at the next step
  uint32_t code_offset = 0, code_stride = 0, scale_offset = 0;  // of this lane
  int shift = 0;  // of ragged scales of rows lane / 4 and 8 below
  int left = 0;   // of K from the next step on
  int steps = 0;  // to fetch
  int write_slot = 0, read_slot = 0;

  // `first_n`: the first of the warp's rows. Of `count` steps from first_step on every
  // kDepthGroups-th is this warp's.
  __device__ __forceinline__ void aim(int64_t first_n, int first_step, int count) {
    const int lane = threadIdx.x % 32;
    const int64_t code_bytes = args.out.K / 2, scale_bytes = row_scales();
    codes = args.codes + first_n * code_bytes + first_step * (kFusedDepth / 2);
    scales = args.scales + first_n * scale_bytes + first_step * kRowScales;
    code_stride = static_cast<uint32_t>(code_bytes) * kRowsAtOnce;
    code_offset = lane / kUnits * static_cast<uint32_t>(code_bytes) + lane % kUnits * kUnitBytes;
    scale_offset = lane % 16 * static_cast<uint32_t>(scale_bytes);
    left = static_cast<int>(args.out.K) - first_step * kFusedDepth;
    if constexpr (Tile::kRagged) shift = scale_shift((first_n + lane / 4) * scale_bytes);
    steps = count;
    write_slot = read_slot = 0;
  }

  __device__ __forceinline__ void fetch() {
    const int lane = threadIdx.x % 32;
    if (steps > 0) {
      const uint32_t slot = slots + write_slot;
      // Rows have their 128 bytes in different orders, so that the lanes that read two rows at a
      // time (HalfStep) or eight (NaturalHalfStep) meet all banks.
      const int row = lane / kUnits, byte = lane % kUnits * kUnitBytes;
      const uint32_t to = slot + row * 128 + (byte ^ (Tile::kTakesMap ? row * 16 : row % 2 * 64));
      const int valid = byte * 2 < left ? kUnitBytes : 0;
#pragma unroll
      for (int i = 0; i < 16 / kRowsAtOnce; ++i) {
        const uint32_t order = Tile::kTakesMap ? i * kRowsAtOnce % 8 * 16 : 0;
        copy_async_to<kUnitBytes>((to ^ order) + i * kRowsAtOnce * 128,
                                  codes + (code_offset + i * code_stride), valid);
      }
      if constexpr (Tile::kRagged) {
        fetch_ragged_scales(slot + Tile::kCodeBytes);
      } else if (args.scale_vectors && left >= kFusedDepth) {
        if (lane < 16) {
          copy_async_to<kRowScales>(slot + Tile::kCodeBytes + lane * kRowScales,
                                    scales + scale_offset, kRowScales);
        }
      } else {
        fetch_scale_words(slot + Tile::kCodeBytes);
      }
      codes += kFusedDepth / 2 * Tile::kDepthGroups;
      scales += kRowScales * Tile::kDepthGroups;
      left -= kFusedDepth * Tile::kDepthGroups;
      --steps;
    }
    write_slot =
        write_slot == (Tile::kSlots - 1) * Tile::kSlotBytes ? 0 : write_slot + Tile::kSlotBytes;
    copy_async_commit();
  }

  // Rows of scales that start at multiples of 4 bytes only, or end here.
  __device__ __forceinline__ void fetch_scale_words(uint32_t to) {
    constexpr int kWords = kRowScales / 4;
    const uint32_t scale_bytes = row_scales();
#pragma unroll
    for (int i = threadIdx.x % 32; i < 16 * kWords; i += 32) {
      const int word = i % kWords;
      copy_async_to<4>(to + i * 4, scales + (i / kWords * scale_bytes + word * 4),
                       word * 4 * kBlock < left ? 4 : 0);
    }
  }

  // The words that hold them; those of other steps and rows come along at either end, but behind
  // the row are zeros, as a NaN would meet the codes of zero there.
  __device__ __forceinline__ void fetch_ragged_scales(uint32_t to) {
    constexpr int kWords = Tile::kScalePitch / 4;
    const uint32_t scale_bytes = row_scales();
#pragma unroll
    for (int i = threadIdx.x % 32; i < 16 * kWords; i += 32) {
      const uint8_t* const row = scales + i / kWords * scale_bytes;
      const int byte = i % kWords * 4 - scale_shift(row - args.scales);
      const int row_left = (left + kBlock - 1) / kBlock - byte;
      copy_async_bytes(to + i * 4, row + byte, row_left);
    }
  }

  __device__ __forceinline__ uint32_t row_scales() const {
    return (static_cast<uint32_t>(args.out.K) + kBlock - 1) / kBlock;
  }

  // The shared address of the oldest slot, when its bytes are there.
  __device__ __forceinline__ uint32_t next() {
    copy_async_wait<Tile::kSlots - 2>();
    __syncwarp();
    const uint32_t slot = slots + read_slot;
    read_slot =
        read_slot == (Tile::kSlots - 1) * Tile::kSlotBytes ? 0 : read_slot + Tile::kSlotBytes;
    return slot;
  }
};

}  // namespace my_ops
