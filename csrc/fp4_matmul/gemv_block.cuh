// What the gemv kernel is told, what of the weight a block has and where in shared memory. Device
// only, sm_90a, needs no torch.
#pragma once

#include "fp4_matmul/gemv_copies.cuh"
#include "fp4_matmul/gemv_plan.h"
#include "fp4_matmul/product_output.cuh"

namespace my_ops {

struct GemvArguments {
  const uint8_t* codes;   // [N, K / 2], rows start at multiples of 8 bytes
  const uint8_t* scales;  // [N, ceil(K / block)], anywhere; K % 32 == 0: at multiples of 2, K %
                          // 256 == 0: of 4
  const float* amax;      // null: no global scale
  const void* x;          // [K], at a multiple of 16 bytes
  ProductOutput out;
  GemvPlan plan;
};

// kFlat: rows of codes lie in shared memory as in memory (gemv_is_flat, and with own slices).
template <typename scalar_t_, Fp4Format kFormat_, bool kFlat_, bool kSmallTail_>
struct GemvTile {
  using scalar_t = scalar_t_;
  static constexpr Fp4Format kFormat = kFormat_;
  static constexpr bool kFlat = kFlat_, kSmallTail = kSmallTail_;  // as of GemvPlan
  static constexpr int kScaleBlock = fp4_block_size(kFormat);
  static constexpr int kVectorScales = 32 / kScaleBlock;  // of 16 bytes of codes
  static constexpr int kGroups = 1;                       // of rows of x
  // Of a slice, the codes from a lane's first to the next lane's, and from its 32 of one place to
  // those of the other. NVFP4 in rows that lie as in memory: 64 in line, whose four scales two
  // words hold. As all rows of a unit have their scales in the same bank, lanes then wait for each
  // other half as often as with places apart: 7.1 us for 7.55 at 5003 x 4112. No better for MXFP4,
  // and for rows with a pitch 5.8 for 5.7 (4000 x 4128).
  static constexpr bool kInLine = kFlat && kFormat == Fp4Format::nvfp4;
  static constexpr int kLaneStep = kInLine ? 64 : 32, kPlaceStep = kInLine ? 32 : 128;
};

// In shared memory follow each other: barriers for each unit, for scales and for x, x, rows of
// scales as in memory, rows of codes, the sums of slices.
template <typename Tile>
class GemvBlock {
 public:
  int K, slices, first_row, rows, units, row_scales;
  int x_bytes, pitch, sum_pitch;
  uint32_t barriers, x, scales, sums;

  __device__ __forceinline__ GemvBlock(const GemvArguments& args, uint32_t shared)
      : K(static_cast<int>(args.out.K)),
        slices(args.plan.slices),
        first_row(blockIdx.x * args.plan.rows + min(static_cast<int>(blockIdx.x), args.plan.more)),
        rows(args.plan.rows + (static_cast<int>(blockIdx.x) < args.plan.more ? 1 : 0)),
        units((rows + kGemvRows - 1) / kGemvRows),
        row_scales((K + Tile::kScaleBlock - 1) / Tile::kScaleBlock),
        x_bytes((slices + (Tile::kSmallTail ? 1 : 0)) * kGemvDepth * 2),
        pitch(args.plan.pitch),
        sum_pitch(slices + 1 + slices % 2),
        barriers(shared),
        x(shared + kGemvBarrierBytes),
        scales(x + x_bytes),
        sums(scales + args.plan.scale_bytes + units * kGemvRows * pitch + 128),
        args_(args),
        row_codes_(K / 2),
        codes_(scales + args.plan.scale_bytes),
        from_(args.codes + int64_t{first_row} * row_codes_) {}

  __device__ __forceinline__ uint32_t unit_barrier(int unit) const { return barriers + unit * 8; }
  __device__ __forceinline__ uint32_t scale_barrier() const { return unit_barrier(units); }
  __device__ __forceinline__ uint32_t x_barrier() const { return unit_barrier(units + 1); }

  // Where rows lie in shared memory.
  __device__ __forceinline__ uint32_t codes_of(int row) const {
    const uintptr_t phase = Tile::kFlat ? reinterpret_cast<uintptr_t>(from_) % 16 : 0;
    return codes_ + static_cast<uint32_t>(phase) + row * pitch;
  }
  __device__ __forceinline__ uint32_t scales_of(int row) const {
    return all_scales().begin() + row * row_scales;
  }

  __device__ __forceinline__ void start_copies() const {
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
      if (lane == 0) {
        sm90::arrive_expecting(x_barrier(), K * 2);
        sm90::bulk_copy(x, args_.x, K * 2, x_barrier());
        sm90::arrive_expecting(scale_barrier(), all_scales().whole());
        all_scales().copy(scale_barrier());
      }
      __syncwarp();  // these come first
      if (lane < units) {
        const int unit_rows = min(kGemvRows, rows - lane * kGemvRows);
        sm90::arrive_expecting(unit_barrier(lane),
                               Tile::kFlat ? unit_of_codes(lane).whole() : unit_rows * row_codes_);
        if constexpr (Tile::kFlat) unit_of_codes(lane).copy(unit_barrier(lane));
      }
      if constexpr (!Tile::kFlat) {
        __syncwarp();
        for (int row = lane; row < rows; row += 32) {
          sm90::bulk_copy(codes_ + row * pitch, from_ + row * row_codes_, row_codes_,
                          unit_barrier(row / kGemvRows));
        }
      }
    }
    if (blockIdx.x == gridDim.x - 1) finish();
  }

  // The same by one thread, where rows are flat, but for what the last block's first 16 threads do.
  // A lane for each unit takes 0.1 us longer.
  __device__ __forceinline__ void start_copies_alone() const {
    sm90::arrive_expecting(x_barrier(), K * 2);
    sm90::bulk_copy(x, args_.x, K * 2, x_barrier());
    sm90::arrive_expecting(scale_barrier(), all_scales().whole());
    all_scales().copy(scale_barrier());
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      sm90::arrive_expecting(unit_barrier(unit), unit_of_codes(unit).whole());
      unit_of_codes(unit).copy(unit_barrier(unit));
    }
  }
  __device__ __forceinline__ void finish() const {
    all_scales().finish();
    if constexpr (Tile::kFlat) unit_of_codes(units - 1).finish();
  }
  __device__ __forceinline__ void prefetch() const {
    all_scales().prefetch();
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) unit_of_codes(unit).prefetch();
  }

 private:
  __device__ __forceinline__ GemvStretch all_scales() const {
    return GemvStretch(args_.scales + int64_t{first_row} * row_scales, rows * row_scales,
                       args_.scales + args_.out.N * row_scales, scales);
  }
  __device__ __forceinline__ GemvStretch unit_of_codes(int unit) const {
    const int start = unit * kGemvRows * row_codes_;
    return GemvStretch(from_ + start, min(kGemvRows, rows - unit * kGemvRows) * row_codes_,
                       args_.codes + args_.out.N * row_codes_, codes_ + start);
  }

  const GemvArguments& args_;
  int row_codes_;
  uint32_t codes_;
  const uint8_t* from_;
};

}  // namespace my_ops
