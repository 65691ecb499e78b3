// The arguments, tiles and memory of the fused kernel (fused_kernel.cuh). Device only, needs no
// torch.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "common/ring_place.cuh"
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
  const uint8_t* scales;  // [N, ceil(K / block)], of 4 bytes; ragged: anywhere
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
  DenseRows x;                                     // [M, K], where it comes by the copy engine
  CUtensorMap x_map;  // the same in boxes of 64 columns, for the copy engine
  CUtensorMap y_map;  // out, where tiles have the copy engine store it (kResultBoxes)
  // Where the copy engine brings the weight, boxes of kFusedRows by 128 bytes of codes and by
  // kBoxScales of scales.
  CUtensorMap codes_map, scales_map;
};

// With those of a ragged weight (fused_slots.cuh). Others do without, as a launch brings them all.
struct RaggedArguments : FusedArguments {
  CUtensorMap code_maps[2];  // even and odd rows of codes, each behind so many bytes:
  int code_shifts[2];
};

// A block owns 128 rows of the weight and kTokens rows of x. kDepthGroups groups of two warpgroups
// share its steps. Stages of kStageDepth along K hold x. kWords words of either row are decoded for
// the tensor cores at a time, into kBuffers sets of registers in turn. kMail: several clusters have
// a tile, each with a part of K. kResultBoxes: the copy engine stores results (box_output.cuh).
// kWeightBoxes: it brings the weight.
template <typename scalar_t_, Fp4Format kFormat_, int kTokens_, int kStageDepth_, int kStages_,
          int kSlots_, int kWords_, int kBuffers_, bool kRagged_, bool kMail_ = false,
          bool kResultBoxes_ = false, bool kWeightBoxes_ = false>
struct FusedTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr bool kRagged = kRagged_, kMail = kMail_;
  static constexpr bool kResultBoxes = kResultBoxes_, kWeightBoxes = kWeightBoxes_;
  using Arguments = std::conditional_t<kRagged, RaggedArguments, FusedArguments>;
  // Whether pairs have a factor that comes of amax (pair_factor).
  static constexpr bool kFactor = kFormat == Fp4Format::nvfp4 && !std::is_same_v<scalar_t, __half>;
  static constexpr int kTokens = kTokens_, kDepthGroups = fused_depth_groups(kTokens);
  static constexpr bool kTakesMap = fused_takes_map(kTokens, kRagged);
  static constexpr bool kEndsEarly = fused_ends_early(kTokens, kRagged);
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
  static constexpr int kRowScales = kFusedDepth / fp4_block_size(kFormat);  // bytes of a step

  // What holds codes and scales of a step: slots, of every warp's own rows or, ragged and in boxes,
  // of the whole block's. Ragged rows have room for a multiple of 16 bytes wherever they begin.
  static constexpr bool kBlockSlots = kRagged || kWeightBoxes;
  static constexpr int kRings = kBlockSlots ? 1 : kConsumers / 32;
  static constexpr int kRingRows = kBlockSlots ? kRows : 16;
  static constexpr int kCodePitch = kRagged ? kRaggedCodePitch : kFusedDepth / 2;
  static constexpr int kScalePitch =
      kRagged ? 2 * kRowScales : (kWeightBoxes ? kBoxScales : kRowScales);
  static constexpr int kCodeBytes = kRingRows * kCodePitch, kOddRows = kCodeBytes / 2;
  static constexpr int kSlotBytes = kCodeBytes + (kRingRows * kScalePitch + 127) / 128 * 128;

  // Where results that go as boxes begin, the slots, sums of the second depth group, the barriers,
  // those of slots.
  static constexpr int kStaging = kStages * kStageBytes;
  static constexpr int kSlotsAt =
      kStaging + (kResultBoxes ? kConsumers / 128 * kOutputStagingBytes : 0);
  static constexpr int kSlotsEnd = kSlotsAt + kRings * kSlots * kSlotBytes;
  // They take the place of the group's own slots; those of a block may be in use.
  static constexpr int kSumPitch = kBlockSlots ? 32 * kAccumulators * 4 : kSlots * kSlotBytes;
  static constexpr int kGroupSums = kBlockSlots ? kSlotsEnd : kSlotsAt + kRowWarps * kSumPitch;
  static constexpr int kBarriers =
      kSlotsEnd + (kBlockSlots && kDepthGroups > 1 ? kRowWarps * kSumPitch : 0);
  static constexpr int kSlotBarriers = kBarriers + 256;
  // The scale of results with a barrier (fused_scale.cuh), and one for the first x (BoxProducer).
  static constexpr int kScalePlace = kSlotBarriers + (kBlockSlots ? 16 * kSlots : 0);
  static constexpr int kFirstX = kScalePlace + 16;
  static constexpr int kSharedBytes = kFirstX + 8;
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");
  static_assert(16 * kStages + 8 + 8 * ((kStrips / 2 + 1) / 2) <= 256,
                "two a stage, those of an exchange");
};

// Places in the sequences of stages and of slots that a block goes through, tile after tile.
template <typename Tile>
using StagePlace = RingPlace<Tile::kStages>;
template <typename Tile>
using SlotPlace = RingPlace<Tile::kSlots>;

}  // namespace my_ops
