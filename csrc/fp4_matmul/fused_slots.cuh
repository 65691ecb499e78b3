// How a ragged weight (ragged_rows.h) comes into the fused kernel: three warps that do nothing else
// fill slots, each with a step of all rows of the block. Device only, sm_90a, needs no torch.
//
// The copy engine wants matrices, their rows and the boxes that it brings to begin at multiples of
// 16 bytes: a box from elsewhere is an illegal instruction, whatever its elements are. Ragged rows
// of codes begin at multiples of 8, but even rows alone are a matrix as it wants them, and so are
// odd ones, from the multiple of 16 on at or before the first. Boxes are 16 bytes wider for that,
// and lanes read 8 bytes at a time. What lies behind K or N is zero. Scales begin anywhere: two
// warps copy them.
//
// Every warp copying its own rows, codes by 8 bytes and scales by 4, is in its own way: at 5003 x
// 4112, bfloat16 and NVFP4, M = 64 took 16.9 us (17.3 with K in three parts) and takes 14.7 (in
// three), M = 128 20.4 and 19.4, M = 256 35.3 and 34.1; M = 128 at 8200 x 8208 38.4 and 32.2. Rows
// that are not ragged are better off with rings (or fused_boxes.cuh), which begin sooner: 13.0
// for 14.3 at M = 64, 5003 x 4160. Codes copied by warps, too: 33.0 for 31.6 at M = 256 by tiles of
// 128. Both from the kernel's first instructions on: 15.2 for 14.7 at M = 64, as x comes later.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/fused_work.cuh"
#include "fp4_matmul/slot_writes.cuh"

namespace my_ops {

constexpr int kWeightWarps = 3;

template <typename Tile>
__device__ __forceinline__ int weight_row_scales(const FusedArguments& args) {
  constexpr int kBlock = fp4_block_size(Tile::kFormat);
  return (static_cast<int>(args.out.K) + kBlock - 1) / kBlock;
}

// How far behind a multiple of what a step has of a row the scales of a tile's row begin. Every
// 16th row is alike.
template <typename Tile>
__device__ __forceinline__ int slot_scale_shift(const FusedArguments& args, int row) {
  const auto address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(args.scales));
  return static_cast<int>(address + row * weight_row_scales<Tile>(args)) & (Tile::kRowScales - 1);
}

// What a warp reads of the slots: 16 rows of each.
template <typename Tile>
struct WeightSlots {
  const uint32_t full, empty;               // barriers
  uint32_t codes, low_scales, high_scales;  // of this lane's row in slot 0, and of the one 8 below
  SlotPlace<Tile> place;
  int ahead = 0;  // from the place to the next slot

  __device__ __forceinline__ WeightSlots(const RaggedArguments& args, uint32_t base, int warp)
      : full(base + Tile::kSlotBarriers), empty(full + Tile::kSlots * 8) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = warp % Tile::kRowWarps * 16 + g;
    const uint32_t slot = base + Tile::kSlotsAt, scales = slot + Tile::kCodeBytes;
    codes = slot + g % 2 * Tile::kOddRows + row / 2 * Tile::kCodePitch + args.code_shifts[g % 2] +
            t * 32;
    low_scales = scales + row * Tile::kScalePitch + slot_scale_shift<Tile>(args, g);
    high_scales = scales + (row + 8) * Tile::kScalePitch + slot_scale_shift<Tile>(args, g + 8);
  }

  // The first step of a tile has that position.
  __device__ __forceinline__ void begin(int position) {
    place = SlotPlace<Tile>::after(position);
    ahead = 0;
  }
  // The next slot of this warp, when its bytes are there; where there are no more, the last one.
  __device__ __forceinline__ int next(bool more = true) {
    place = place.ahead(more ? ahead : 0);
    ahead = Tile::kDepthGroups;
    sm90::wait_barrier(full + place.slot * 8, place.parity);
    return place.slot;
  }
  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90::arrive(empty + slot * 8);
  }
};

// What a warp does that fills slots: part 0 has the copy engine bring codes, lanes of the others
// copy scales.
template <typename Tile>
class WeightProducer {
 public:
  __device__ __forceinline__ WeightProducer(const RaggedArguments& args, uint32_t base, int part)
      : args_(args),
        full_(base + Tile::kSlotBarriers),
        empty_(full_ + Tile::kSlots * 8),
        memory_(base + Tile::kSlotsAt),
        part_(part),
        row_scales_(weight_row_scales<Tile>(args)) {}

  // Of one thread.
  __device__ __forceinline__ static void init_barriers(uint32_t base) {
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      const uint32_t full = base + Tile::kSlotBarriers + slot * 8;
      sm90::init_barrier(full, 1 + kScaleLanes);
      sm90::init_barrier(full + Tile::kSlots * 8, Tile::kRowWarps);
    }
  }

  __device__ __forceinline__ void produce(const FusedWorks& works) {
    for (int number = works.first; number < works.end; number += works.stride) {
      const FusedWork work = works.template at<Tile>(number);
      aim(work);
      for (int step = work.first_step; step < work.end_step; ++step) produce_step();
    }
  }

 private:
  static constexpr int kScaleLanes = 32 * (kWeightWarps - 1), kRowsAtOnce = kScaleLanes / 2;
  static constexpr int kUnit = Tile::kRowScales;

  __device__ __forceinline__ void aim(const FusedWork& work) {
    pair_ = work.row_tile * (Tile::kRows / 2);
    column_ = work.first_step * (kFusedDepth / 2);
    if (part_ == 0) return;
    // What a step has of a row lies in two units, wherever it begins.
    const int row = scale_lane() / 2;
    const int behind =
        work.first_step * kUnit + scale_lane() % 2 * kUnit - slot_scale_shift<Tile>(args_, row);
    rows_left_ = static_cast<int>(args_.out.N) - 2 * pair_ - row;
    left_ = row_scales_ - behind;
    scales_ = args_.scales + int64_t{2 * pair_ + row} * row_scales_ + behind;
  }

  __device__ __forceinline__ void produce_step() {
    const uint32_t full = full_ + place_.slot * 8;
    const uint32_t slot = memory_ + place_.slot * Tile::kSlotBytes;
    sm90::wait_barrier(empty_ + place_.slot * 8, place_.parity ^ 1);
    if (part_ == 0) {
      if (sm90::elect_one()) {
        sm90::arrive_expecting(full, Tile::kCodeBytes);
        sm90::box_copy(slot, args_.code_maps[0], pair_, column_, full);
        sm90::box_copy(slot + Tile::kOddRows, args_.code_maps[1], pair_, column_, full);
      }
      column_ += kFusedDepth / 2;
    } else {
      copy_scales(slot + Tile::kCodeBytes + scale_lane() * kUnit);
      arrive_after_copies(full);
    }
    place_ = place_.ahead(1);
  }

  __device__ __forceinline__ int scale_lane() const {
    return part_ * 32 - 32 + static_cast<int>(threadIdx.x) % 32;
  }

  // This lane's unit of every 32nd row. Behind the row are zeros, as a NaN would meet codes of zero
  // there.
  __device__ __forceinline__ void copy_scales(uint32_t to) {
    const uint8_t* from = scales_;
    const uint8_t* const end = args_.scales + args_.out.N * row_scales_;
#pragma unroll
    for (int row = 0; row < Tile::kRows; row += kRowsAtOnce) {
      const int valid = row < rows_left_ ? min(max(left_, 0), kUnit) : 0;
      const uint32_t at = to + row * Tile::kScalePitch;
      if (valid == 0 || from + kUnit <= end) {
        copy_to_slot<kUnit>(at, from, valid);
      } else {
        // Behind the end of the weight nothing may be read.
#pragma unroll 1
        for (int i = 0; i < kUnit; ++i) store_to_slot(at + i, i < valid ? from[i] : 0);
        __threadfence_block();  // before the arrival, which follows copies
      }
      from += kRowsAtOnce * row_scales_;
    }
    scales_ += kUnit;
    left_ -= kUnit;
  }

  const RaggedArguments& args_;
  const uint32_t full_, empty_, memory_;
  const int part_;
  const int row_scales_;
  SlotPlace<Tile> place_;
  int pair_ = 0, column_ = 0;  // of the maps
  // This lane's unit of the next step; what its row has from there on, and how many rows there are.
  const uint8_t* scales_ = nullptr;
  int left_ = 0, rows_left_ = 0;
};

}  // namespace my_ops
