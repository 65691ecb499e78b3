// Parts of the fused kernel's loop: the barriers of its stages, and the decoding of half a step.
// Device only, needs no torch.
#pragma once

#include <type_traits>

#include "common/sm90_cluster.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fp4_e8m0.cuh"
#include "fp4_matmul/fused_boxes.cuh"
#include "fp4_matmul/fused_slots.cuh"
#include "fp4_matmul/quick_pairs.cuh"
#include "fp4_matmul/shared_words.cuh"

namespace my_ops {

template <typename Tile>
using WeightSource =
    std::conditional_t<Tile::kRagged, WeightSlots<Tile>,
                       std::conditional_t<Tile::kWeightBoxes, BoxRing<Tile>, WeightRing<Tile>>>;

template <typename Tile>
struct FusedBarriers {
  uint32_t full, empty;  // shared addresses of the first ones
  // Of this lane, where x comes by the copy engine: the first `empty` of a block that has a share
  // in the stages, or zero.
  uint32_t remote_empty = 0;

  // Which blocks have it: those of the cluster that share x, or this one, `rank`, as often.
  __device__ __forceinline__ void share(int sharers, int rank, bool shared) {
    const int lane = threadIdx.x % 32;
    remote_empty = lane < sharers ? sm90::address_at_rank(empty, shared ? lane : rank) : 0;
  }

  // The warp has read the stage: arrives for each of these blocks, one lane for each.
  __device__ __forceinline__ void release(int stage) const {
    if constexpr (!Tile::kTakesMap) {
      arrive(empty + stage * 8);
    } else if (remote_empty != 0) {
      sm90::arrive_remote(remote_empty + stage * 8);
    }
  }

 private:
  __device__ __forceinline__ static void arrive(uint32_t barrier) {
    if (threadIdx.x % 32 == 0) sm90::arrive(barrier);
  }
};

// What a lane decodes of half a step, 128 along K: 32 codes of each of two rows, lane / 4 and the
// one 8 below.
template <typename Tile>
struct HalfStep {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr int kBytes = Tile::kRowScales / 8;  // of a lane's scales
  const uint32_t factor;                               // a pair of bfloat16
  uint4 low, high;                                     // the words of either row
  uint32_t low_byte = 0, high_byte = 0;                // of scales
  uint32_t low_scale[2], high_scale[2];                // pairs for words 0-1 and 2-3
  FittingScales<scalar_t> fitting;

  __device__ __forceinline__ explicit HalfStep(float factor)
      : factor(pack_pair(__nv_bfloat16{}, factor, factor)) {}

  // Lane t of a quad has 64 t + 32 half of a step, so that the lanes that read two rows at a time
  // meet all banks.
  __device__ __forceinline__ void load(const WeightRing<Tile>&, uint32_t slot, int half) {
    const int g = threadIdx.x % 32 / 4;
    load_rows(slot, g, g % 2, half, 0);
  }

  // Of the slots of a block: the hardware's swizzle, and scales of two steps.
  __device__ __forceinline__ void load(const BoxRing<Tile>& ring, uint32_t slot, int half) {
    const int g = threadIdx.x % 32 / 4;
    load_rows(slot, threadIdx.x / 32 % Tile::kRowWarps * 16 + g, g, half, ring.shift);
  }

  // Of ragged rows.
  __device__ __forceinline__ void load(const WeightSlots<Tile>& slots, uint32_t slot, int half) {
    const uint32_t codes = slots.codes + slot * Tile::kSlotBytes + half * 16;
    low = load_shared16_by_8(codes);
    high = load_shared16_by_8(codes + 4 * Tile::kCodePitch);
    const uint32_t scales = slot * Tile::kSlotBytes + (threadIdx.x % 4 * 2 + half) * kBytes;
    low_byte = load_shared_bytes<kBytes, false>(slots.low_scales + scales);
    high_byte = load_shared_bytes<kBytes, false>(slots.high_scales + scales);
  }

  // What the words have in common.
  __device__ __forceinline__ void begin() {
    if constexpr (!kMx) {
      block_scales(low_byte, low_scale);
      block_scales(high_byte, high_scale);
    } else if constexpr (!std::is_same_v<scalar_t, __half>) {
      uint32_t scale[2];
      halves_twice(fitting.pair_of_two(low_byte | high_byte << 16), scale);
      low_scale[0] = low_scale[1] = scale[0];
      high_scale[0] = high_scale[1] = scale[1];
    } else {
      low_scale[0] = low_scale[1] = fitting.pair(low.x | low.y | low.z | low.w, low_byte);
      high_scale[0] = high_scale[1] = fitting.pair(high.x | high.y | high.z | high.w, high_byte);
    }
  }

  // Word w of both rows as the operands A of two instructions.
  __device__ __forceinline__ void decode_word(int w, uint32_t (*fragments)[4]) {
    uint32_t first = w == 0 ? low.x : w == 1 ? low.y : w == 2 ? low.z : low.w;
    uint32_t second = w == 0 ? high.x : w == 1 ? high.y : w == 2 ? high.z : high.w;
    // Not before this point, or the tensor cores idle while all words are decoded at once.
    asm volatile("" : "+r"(first), "+r"(second));
    uint32_t a[4], b[4];
    quick_pairs(scalar_t{}, first, a);
    quick_pairs(scalar_t{}, second, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fragments[i / 2][i % 2 * 2] = multiply_pairs(scalar_t{}, a[i], low_scale[w / 2]);
      fragments[i / 2][i % 2 * 2 + 1] = multiply_pairs(scalar_t{}, b[i], high_scale[w / 2]);
    }
  }

 private:
  __device__ __forceinline__ void block_scales(uint32_t bytes, uint32_t (&scales)[2]) const {
    uint32_t both = nvfp4_scales<scalar_t>(bytes, 1.0f);
    if constexpr (!std::is_same_v<scalar_t, __half>) {
      both = multiply_pairs(scalar_t{}, both, factor);
    }
    halves_twice(both, scales);
  }

  // `turn`: how the chunks of a row of codes lie. `shift`: of scales in theirs.
  __device__ __forceinline__ void load_rows(uint32_t slot, int row, int turn, int half, int shift) {
    const int t = threadIdx.x % 4;
    const uint32_t codes = slot + (row * 128 + ((2 * t ^ turn) * 16 ^ half * 16));
    low = load_shared16(codes);
    high = load_shared16(codes + 1024);
    const uint32_t scales =
        slot + shift + (Tile::kCodeBytes + row * Tile::kScalePitch + (2 * t + half) * kBytes);
    low_byte = load_shared_bytes<kBytes>(scales);
    high_byte = load_shared_bytes<kBytes>(scales + 8 * Tile::kScalePitch);
  }
};

}  // namespace my_ops
