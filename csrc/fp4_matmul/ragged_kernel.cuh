// y = x * Wq^T + bias for up to 16 rows of x and a ragged weight (ragged_rows.h), on Hopper. Device
// only, sm_90a, needs no torch.
//
// A block owns a panel of 16 kTiles rows and all of K, as in panel_kernel.cuh, but has all of it in
// shared memory at once, as one stretch (ragged_rows.cuh). All its threads copy, and wait for the
// copies of all at a barrier for each tile: 11.2 us at M = 16, 5003 x 4112. Rows by themselves, of
// every warp its own steps, begin and end within lines of memory and take 12.1 us; the copy engine
// takes 12.1 for the same stretches, in whatever pieces.
#pragma once

#include "common/overlap.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/panel_kernel.cuh"
#include "fp4_matmul/ragged_end.cuh"
#include "fp4_matmul/ragged_rows.cuh"
#include "fp4_matmul/shared_words.cuh"
#include "fp4_matmul/slot_writes.cuh"

namespace my_ops {

template <typename scalar_t_, Fp4Format kFormat_, int kTiles_, int kGroups_>
struct RaggedPanelTile : StreamTile<scalar_t_, kFormat_, 1, true, false, kGroups_> {
  static constexpr int kMaxWarps = kRaggedPanelWarps;
  static constexpr int kTiles = kTiles_, kRows = kTiles * kStreamRows, kTokens = 8 * kGroups_;
  static constexpr int kXBytes = kTokens * kStreamXBytes;  // of a warp's step
  static constexpr int kPitch = kRows + 4;                 // of sums, so that lanes meet all banks
  static constexpr int kWarpSums = kTokens * kPitch;
  static_assert(kWarpSums * 4 <= kXBytes, "sums take its place");
  static_assert(kRaggedPanelX >= 8 * kTiles, "barriers come first");
};

// A lane's part of a step as in StreamStep, from a panel.
template <typename Tile>
class RaggedPanelStep {
 public:
  using Step = StreamStep<Tile>;

  __device__ __forceinline__ RaggedPanelStep(const RaggedRows& codes, const RaggedRows& scales)
      : low_codes_(codes.row(threadIdx.x % 32 / 4) + threadIdx.x % 4 * 16),
        low_scales_(scales.row(threadIdx.x % 32 / 4) + threadIdx.x % 4 * kLaneScales),
        code_rows_(codes.row(8) - codes.row(0)),
        scale_rows_(scales.row(8) - scales.row(0)),
        code_pitch_(codes.pitch()),
        scale_pitch_(scales.pitch()) {}

  __device__ __forceinline__ void load(int tile, int k, int left, typename Step::Codes& codes,
                                       typename Step::Scales& scales) const {
    const uint32_t from = low_codes_ + tile * code_pitch_ + k / 2;
    const uint32_t scales_from = low_scales_ + tile * scale_pitch_ + k / Tile::kScaleBlock;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      codes.low[half] = load_shared16_by_8(from + half * 64);
      codes.high[half] = load_shared16_by_8(from + half * 64 + code_rows_);
      const uint32_t at = scales_from + half * Tile::kScaleBytes / 2;
      scales.low[half] = load_shared_bytes<kLaneScales, false>(at);
      scales.high[half] = load_shared_bytes<kLaneScales, false>(at + scale_rows_);
      if (left < kStreamDepth) {
        const int mine = left - half * (kStreamDepth / 2) - static_cast<int>(threadIdx.x) % 4 * 32;
        end_row<kLaneScales>(mine, codes.low[half], scales.low[half]);
        end_row<kLaneScales>(mine, codes.high[half], scales.high[half]);
      }
    }
  }

 private:
  static constexpr int kLaneScales = 32 / Tile::kScaleBlock;

  uint32_t low_codes_, low_scales_;    // of row lane / 4
  uint32_t code_rows_, scale_rows_;    // to the one 8 below
  uint32_t code_pitch_, scale_pitch_;  // to the next tile
};

// Adds up what the warps have of each element of y, and stores it.
template <typename Tile>
__device__ __forceinline__ void store_ragged_panel(const StreamArguments& args, const float* sums,
                                                   int warps, int first_row, float factor) {
  const int elements = static_cast<int>(args.out.M) * Tile::kRows;
  for (int i = threadIdx.x; i < elements; i += warps * 32) {
    const int row = i % Tile::kRows, m = i / Tile::kRows;
    if (first_row + row < static_cast<int>(blockIdx.x) * Tile::kRows) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += sums[w * Tile::kWarpSums + m * Tile::kPitch + row];
    const int64_t n = first_row + row;
    store_element(args.out, m, n, sum * factor + load_bias(args.out, n));
  }
}

template <typename Tile>
__global__ void MY_OPS_SM90_BLOCKS(Tile::kMaxWarps * 32)
    fp4_ragged_kernel(const StreamArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Step = StreamStep<Tile>;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int M = static_cast<int>(args.out.M), K = static_cast<int>(args.out.K);
  // The last panel overlaps the one before it where N is no multiple, which stores those rows.
  const int first_row =
      min(static_cast<int>(blockIdx.x) * Tile::kRows, static_cast<int>(args.out.N) - Tile::kRows);
  const uint32_t barriers = shared_address(shared);
  uint8_t* const x_memory = shared + kRaggedPanelX + warp * Tile::kXBytes;
  const uint32_t panel = barriers + kRaggedPanelX + warps * Tile::kXBytes;
  const int row_codes = K / 2, row_scales = (K + Tile::kScaleBlock - 1) / Tile::kScaleBlock;
  const RaggedRows codes(args.codes, first_row, args.out.N, row_codes, panel);
  const RaggedRows scales(args.scales, first_row, args.out.N, row_scales,
                          panel + Tile::kTiles * codes.pitch());

  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      sm90::init_barrier(barriers + tile * 8, blockDim.x);
    }
  }
  __syncthreads();
  wait_for_previous_kernel();
  const float amax = load_amax(args);
  const auto copy_x = [&](int k) {
    if (k < K) StreamX<Tile>::copy(args, x_memory, k);
    copy_async_commit();
  };
  copy_x(warp * kStreamDepth);
#pragma unroll 1
  for (int tile = 0; tile < Tile::kTiles; ++tile) {
    codes.copy(tile);
    scales.copy(tile);
    arrive_after_copies(barriers + tile * 8);
  }
  const FragmentScale scale = stream_scale<Tile>(args, amax);

  const RaggedPanelStep<Tile> lane_step(codes, scales);
  typename Step::Sums sums[Tile::kTiles] = {};
  FittingScales<typename Tile::scalar_t> fitting;
#pragma unroll 1
  for (int k = warp * kStreamDepth; k < K; k += warps * kStreamDepth) {
    StreamX<Tile> x;
    copy_async_wait<0>();
    __syncwarp();
    x.take(x_memory, M);
    __syncwarp();
    copy_x(k + warps * kStreamDepth);
#pragma unroll
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      // Behind the end of a tile's last row the next tile's first is read.
      const int last_read = min(tile + (K - k < kStreamDepth ? 1 : 0), Tile::kTiles - 1);
      sm90::wait_barrier(barriers + last_read * 8, 0);
      typename Step::Codes step_codes;
      typename Step::Scales step_scales;
      lane_step.load(tile, k, K - k, step_codes, step_scales);
      Step::multiply_once(sums[tile], step_codes, step_scales, x, scale.scale_factor,
                          [&](uint32_t codes, uint32_t byte) { return fitting.pair(codes, byte); });
    }
  }

  copy_async_wait<0>();
  __syncthreads();  // sums take the place of x
  auto* const all = reinterpret_cast<float*>(shared + kRaggedPanelX);
  float* const mine = all + warp * Tile::kWarpSums;
  put_sums<Tile>(mine, sums);
  if (Step::kMx && !__all_sync(~0u, fitting.all_fit())) {
    add_missing<Tile>(args, mine, first_row, warp, warps);
  }
  __syncthreads();
  store_ragged_panel<Tile>(args, all, warps, first_row, scale.sum_factor);
#endif
}

}  // namespace my_ops
