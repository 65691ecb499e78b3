// How a weight that is neither ragged nor in boxes comes into the fused kernel: by copies of the
// warps that decode it. Device only, needs no torch.
#pragma once

#include "fp4_matmul/fused_tile.cuh"

namespace my_ops {

// A warp's ring of codes and scales of its 16 rows: slots that the warp fills with asynchronous
// copies of its own, kSlots - 1 steps ahead. A step is 128 bytes of every
// row: with half of that the copies alone take 13.9 us at 8192 x 8192, with these 10.5.
template <typename Tile>
struct WeightRing {
  static constexpr int kBlock = fp4_block_size(Tile::kFormat);
  static constexpr int kRowScales = Tile::kRowScales;
  static constexpr int kUnits = kFusedDepth / 2 / 16, kRowsAtOnce = 32 / kUnits;

  const FusedArguments& args;
  const uint32_t slots;                               // shared address
  const uint8_t *codes = nullptr, *scales = nullptr;  // of the warp's rows at the next step
  uint32_t code_offset = 0, code_stride = 0, scale_offset = 0;  // of this lane
  int left = 0;                                                 // of K from the next step on
  int steps = 0;                                                // to fetch
  int write_slot = 0, read_slot = 0;

  __device__ __forceinline__ WeightRing(const FusedArguments& args, uint32_t base, int warp)
      : args(args), slots(base + Tile::kSlotsAt + warp * Tile::kSlots * Tile::kSlotBytes) {}

  // `first_n`: the first of the warp's rows. Of `count` steps from first_step on every
  // kDepthGroups-th is this warp's.
  __device__ __forceinline__ void aim(int64_t first_n, int first_step, int count) {
    const int lane = threadIdx.x % 32;
    const int64_t code_bytes = args.out.K / 2, scale_bytes = row_scales();
    codes = args.codes + first_n * code_bytes + first_step * (kFusedDepth / 2);
    scales = args.scales + first_n * scale_bytes + first_step * kRowScales;
    code_stride = static_cast<uint32_t>(code_bytes) * kRowsAtOnce;
    code_offset = lane / kUnits * static_cast<uint32_t>(code_bytes) + lane % kUnits * 16;
    scale_offset = lane % 16 * static_cast<uint32_t>(scale_bytes);
    left = static_cast<int>(args.out.K) - first_step * kFusedDepth;
    steps = count;
    write_slot = read_slot = 0;
  }

  __device__ __forceinline__ void fetch() {
    const int lane = threadIdx.x % 32;
    if (steps > 0) {
      const uint32_t slot = slots + write_slot;
      // Rows have their 128 bytes in different orders, so that the lanes that read two rows at a
      // time (HalfStep) or eight (NaturalHalfStep) meet all banks.
      const int row = lane / kUnits, byte = lane % kUnits * 16;
      const uint32_t to = slot + row * 128 + (byte ^ (Tile::kTakesMap ? row * 16 : row % 2 * 16));
      const int valid = byte * 2 < left ? 16 : 0;
#pragma unroll
      for (int i = 0; i < 16 / kRowsAtOnce; ++i) {
        const uint32_t order = Tile::kTakesMap ? i * kRowsAtOnce % 8 * 16 : 0;
        copy_async_to<16>((to ^ order) + i * kRowsAtOnce * 128,
                          codes + (code_offset + i * code_stride), valid);
      }
      if (args.scale_vectors && left >= kFusedDepth) {
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

  __device__ __forceinline__ uint32_t row_scales() const {
    return (static_cast<uint32_t>(args.out.K) + kBlock - 1) / kBlock;
  }

  __device__ __forceinline__ void begin(int /*position*/) const {}
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
