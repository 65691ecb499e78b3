// How the copy engine brings the weight into the fused kernel: a step of all rows of a tile in one
// box, its scales in another. Device only, sm_90a, needs no torch.
//
// Warps that copy for themselves (WeightRing) spend 480 instructions on a step of 16 products of
// the tensor cores, these 400, which at 64 rows of x takes 1600 cycles instead of 1820: the tensor
// cores leave an instruction of each pipe time every fourth cycle only. 19.5 us for 20.7 at 8192 x
// 8192, 62 for 67 at 28672 x 8192; 128 rows of x, where power sets the clock, 27.6 for 27.9
// (bfloat16 and NVFP4; 27.6 for 27.8 float16 and MXFP4), 90 for 94.
//
// At the start of a block the engine is slow, as it has to ask for its maps first, so warps bring
// their first step: 20.7 us without that. Also slower: two steps by the warps, or boxes on their
// way before x is, in whose way they come (20.6); fewer slots (20.2) or shorter stages of x.
//
// Nor does x come at once (produce_from_image): what is for later steps would be in the way of the
// first: 19.1 us for 19.25 at 64 rows. With 32 rows boxes wait for the first x, too: 16.25 us for
// 16.4 (16.55 where all comes at once), 15.2 for 15.55 at 14336 x 4096; with 64 they are late then
// (20.2). With 32 rows boxes take 16.25 for 16.7 by the warps that decode, 17.05 before they began
// sooner (fused_scale.cuh), fp16 16.0 for 16.8, MXFP4 15.75 for 16.6 and 16.5 for 17.1. No faster:
// five or six slots (16.45, 16.75), stages of half a step (16.7), the words of a step in twos with
// two sets of registers (17.1) or one by one (16.55), x as it lies, which four warps bring into
// order (18.9 to 20) or, of the first step alone and while the image of the rest is made, those
// that decode (19.0 to 20.2 for 16.4 to 17.0: many blocks read the same lines), the weight on its
// way to L2 before x is (17.4 to 19.5), and blocks of a cluster that wait for each other where they
// exchange sums, not where they start (16.05 to 16.6 for 15.8 to 16.3).
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "common/sm90_wgmma.cuh"
#include "fp4_matmul/fused_work.cuh"
#include "fp4_matmul/tensor_core.cuh"

namespace my_ops {

// The first of the bytes of a row of scales that come in a step's box, its own among them.
template <typename Tile>
__device__ __forceinline__ int first_scale(int step) {
  return step * Tile::kRowScales / kBoxScales * kBoxScales;
}

// The place of a step in the sequence that a block goes through, and the barriers of its slot.
template <typename Tile>
struct BoxPlace {
  const uint32_t base;
  SlotPlace<Tile> place;

  __device__ __forceinline__ explicit BoxPlace(uint32_t base) : base(base) {}
  __device__ __forceinline__ void advance(int count) { place = place.ahead(count); }
  __device__ __forceinline__ uint32_t full() const {
    return base + Tile::kSlotBarriers + place.slot * 8;
  }
  __device__ __forceinline__ uint32_t empty() const { return full() + Tile::kSlots * 8; }
  __device__ __forceinline__ uint32_t memory() const {
    return base + Tile::kSlotsAt + place.slot * Tile::kSlotBytes;
  }
};

// Of one thread: asks for the boxes of this block's works, one step after the other, but for the
// first of each depth group.
template <typename Tile>
class BoxProducer {
 public:
  __device__ __forceinline__ static void begin(const FusedArguments& args, uint32_t base) {
    sm90::prefetch_map(args.codes_map);
    sm90::prefetch_map(args.scales_map);
    const BoxPlace<Tile> first(base);
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      sm90::init_barrier(first.full() + slot * 8, 1);
      sm90::init_barrier(first.empty() + slot * 8, Tile::kRowWarps);
    }
    sm90::init_barrier(base + Tile::kFirstX, 1);
    sm90::fence_barrier_init();
    // The warps know themselves when these are here.
    for (int slot = 0; slot < Tile::kDepthGroups; ++slot) sm90::arrive(first.full() + slot * 8);
  }

  __device__ __forceinline__ BoxProducer(const FusedArguments& args, const FusedWorks& works,
                                         uint32_t base)
      : args_(args), works_(works), at_(base), number_(works.first) {
    begin_work();
    for (int i = 0; i < Tile::kDepthGroups; ++i) go_on();
  }

  __device__ __forceinline__ void copy_all() {
    if constexpr (Tile::kDepthGroups > 1) sm90::wait_barrier(at_.base + Tile::kFirstX, 0);
#pragma unroll 1
    for (; number_ < works_.end; go_on()) {
      sm90::wait_barrier(at_.empty(), at_.place.parity ^ 1);
      sm90::arrive_expecting(at_.full(), Tile::kSlotBytes);
      sm90::box_copy(at_.memory(), args_.codes_map, row_, step_ * (kFusedDepth / 2), at_.full());
      sm90::box_copy(at_.memory() + Tile::kCodeBytes, args_.scales_map, row_,
                     first_scale<Tile>(step_), at_.full());
    }
  }

 private:
  __device__ __forceinline__ void begin_work() {
    const FusedWork work = works_.template at<Tile>(number_);
    row_ = work.row_tile * Tile::kRows;
    step_ = work.first_step;
    end_step_ = work.end_step;
  }

  __device__ __forceinline__ void go_on() {
    at_.advance(1);
    if (++step_ < end_step_) return;
    number_ += works_.stride;
    begin_work();
  }

  const FusedArguments& args_;
  const FusedWorks& works_;
  BoxPlace<Tile> at_;
  int number_, row_, step_, end_step_;
};

// The slots as a warp that decodes goes through them: WeightRing's part in multiply().
template <typename Tile>
struct BoxRing {
  BoxPlace<Tile> at;
  int shift = 0;  // from where a box of scales begins to those of the step
  int left = 0;   // steps from there on

  __device__ __forceinline__ BoxRing(const FusedArguments&, uint32_t base, int /*warp*/)
      : at(base) {}

  // Asks for what the warp has of its first step.
  __device__ __forceinline__ void fetch_first(const FusedArguments& args, const FusedWork& work,
                                              int warp) const {
    const int lane = threadIdx.x % 32, first_row = warp % Tile::kRowWarps * 16;
    const int group = warp / Tile::kRowWarps, step = work.first_step + group;
    const int64_t n = work.row_tile * Tile::kRows + first_row;
    const int valid = n < args.out.N ? 16 : 0;  // as in boxes zeros behind the last row
    const int64_t code_bytes = args.out.K / 2;
    const int64_t scale_bytes = args.out.K / fp4_block_size(Tile::kFormat);
    const int row = first_row + lane / 8;
    const uint32_t slot = at.memory() + group * Tile::kSlotBytes;
    const uint8_t* const codes =
        args.codes + (n + lane / 8) * code_bytes + (step * (kFusedDepth / 2) + lane % 8 * 16);
#pragma unroll
    for (int r = 0; r < 16; r += 4) {
      const int chunk = sm90::swizzled_chunk<128>((row + r) % 8, lane % 8);
      copy_async_to<16>(slot + (row + r) * 128 + chunk * 16, codes + r * code_bytes, valid);
    }
    if (lane < 16) {
      copy_async_to<16>(slot + Tile::kCodeBytes + (first_row + lane) * Tile::kScalePitch,
                        args.scales + (n + lane) * scale_bytes + first_scale<Tile>(step), valid);
    }
  }

  // Waits for it.
  __device__ __forceinline__ void wait_for_first() const {
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
  }

  __device__ __forceinline__ void aim(const FusedWork& work, int first_step) {
    left = work.steps();
    shift = first_step * Tile::kRowScales % kBoxScales;
  }

  // At the first step of the warp.
  __device__ __forceinline__ void begin(int position) {
    at.place = SlotPlace<Tile>::after(position);
  }
  // The shared address of the slot, when its bytes are there.
  __device__ __forceinline__ uint32_t next() const {
    sm90::wait_barrier(at.full(), at.place.parity);
    return at.memory();
  }

  // The warp has read the slot. Of two groups, whose scales then lie alike in all their steps.
  __device__ __forceinline__ void release() {
    if (threadIdx.x % 32 == 0) sm90::arrive(at.empty());
    at.advance(Tile::kDepthGroups);
  }

  // The same; gives the next one. Without a branch, which the tensor cores'
  // instructions do not bear: behind the last step it waits for that once more, before others may
  // fill it.
  __device__ __forceinline__ uint32_t release_for_next() {
    const uint32_t read = at.empty();
    at.advance(--left > 0 ? 1 : 0);
    shift ^= kBoxScales - Tile::kRowScales;
    const uint32_t slot = next();
    if (threadIdx.x % 32 == 0) sm90::arrive(read);
    return slot;
  }
};

}  // namespace my_ops
