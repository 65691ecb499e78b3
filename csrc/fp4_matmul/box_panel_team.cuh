// The two warps that share steps of the box panel kernel: how the weight and x come to them, and
// the products. Device only, sm_90a, needs no torch.
#pragma once

#include "common/sm90_bulk_copy.cuh"
#include "common/sm90_mbarrier.cuh"
#include "fp4_matmul/box_panel_scales.cuh"
#include "fp4_matmul/box_panel_tile.cuh"
#include "fp4_matmul/shared_words.cuh"
#include "fp4_matmul/stream_step.cuh"

namespace my_ops {

// Every other 32 of a step's 256 along K is for the same warp, of all rows: lane 4 g + t has the 32
// of rows g and g + 8 of each tile, and of row g of each group of x, that begin at 64 t + 32 half.
template <typename Tile>
class BoxPanelTeam {
 public:
  using scalar_t = typename Tile::scalar_t;
  using Scales = BoxPanelScales<Tile>;
  using Sums = float[Tile::kTiles][Tile::kGroups][4];

  __device__ __forceinline__ BoxPanelTeam(const BoxPanelArguments& args, uint32_t shared, int warp,
                                          int first_row)
      : args_(args),
        first_row_(first_row),
        team_(warp / 2),
        half_(warp % 2),
        steps_(static_cast<int>((args.stream.out.K + kStreamDepth - 1) / kStreamDepth)) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    memory_ = shared + team_ * Tile::kTeamBytes;
    x_full_ = shared + Tile::kBarriers + team_ * 2 * 8;
    weight_full_ = x_full_ + 8;
    x_ = memory_ + g * Tile::kXRowBytes + t * 128 + ((g % 2 * 4 + t) ^ half_ * 4) * 16;
    codes_ = memory_ + Tile::kCodes + g * 128 + ((2 * t + half_) ^ g) * 16;
    const int own_step = Scales::kMx ? team_ % 2 * 8 : 0;  // of the two in a row of scales
    scales_ = memory_ + Tile::kScales + g * Tile::kScaleRowBytes + own_step +
              (2 * t + half_) * Scales::kLaneScales;
  }

  __device__ static __forceinline__ void init_barriers(uint32_t shared) {
    for (int i = 0; i < 2 * Tile::kTeams; ++i) {
      sm90::init_barrier(shared + Tile::kBarriers + i * 8, 1);
    }
    sm90::fence_barrier_init();
  }

  // Rows of x that the copies leave out. What comes of them is not stored, but a NaN would look
  // like one that is.
  __device__ __forceinline__ void clear_rest_of_x() const {
    const int first = static_cast<int>(args_.stream.out.M) * Tile::kXRowBytes;
    for (int i = first + threadIdx.x % 64 * 16; i < Tile::kCodes; i += 64 * 16) {
      store_shared16(memory_ + i, uint4{});
    }
  }

  // What all teams begin with, by one thread, which asks for what one team needs before the next
  // one's. With a thread of each team their steps arrive together, and later: 14.1 us for 13.4. It
  // is one of the last team, which has the time: by one of the first 13.75.
  __device__ __forceinline__ void copy_first_steps() const {
    const uint32_t shared = memory_ - team_ * Tile::kTeamBytes;
#pragma unroll 1
    for (int team = 0; team < min(Tile::kTeams, steps_); ++team) {
      const uint32_t x_full = shared + Tile::kBarriers + team * 2 * 8;
      copy_x(team, shared + team * Tile::kTeamBytes, x_full);
      copy_weight(team, shared + team * Tile::kTeamBytes, x_full + 8);
    }
  }

  // sums += the products of a step, scale_factor as a pair of bfloat16. The copies of the team's
  // next step start as soon as there is room.
  __device__ __forceinline__ void multiply(Sums& sums, int step, uint32_t scale_factor) {
    uint4 x[Tile::kGroups][4];
    sm90::wait_barrier(x_full_, parity_);
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        x[group][w] = load_shared16((x_ ^ w * 16) + group * 8 * Tile::kXRowBytes);
    }
    wait_for_partner();
    const int next = step + Tile::kTeams;
    if (asks_for(next)) copy_x(next, memory_, x_full_);
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
#pragma unroll
      for (int w = 0; w < 4; ++w) x[group][w] = pair_order(x[group][w]);
    }
    sm90::wait_barrier(weight_full_, parity_);
    block_scales_.start(scales_, codes_);
    uint32_t turn = 0;
#pragma unroll
    for (int tile = 0; tile < Tile::kTiles; ++tile) {
      const uint32_t codes = (codes_ | turn) + tile * 2048;
      const uint4 low = load_shared16(codes), high = load_shared16(codes + 1024);
      block_scales_.load(scales_, tile);
      if (tile == Tile::kTiles - 1) wait_for_partner();
      if (tile == Tile::kTiles - 1 && asks_for(next)) copy_weight(next, memory_, weight_full_);
      const auto low_pairs = block_scales_.template pairs<0>(tile, low, scale_factor);
      const auto high_pairs = block_scales_.template pairs<1>(tile, high, scale_factor);
      const uint32_t last = multiply_tile(sums[tile], low, high, low_pairs, high_pairs, x);
      // Zero, which the compiler cannot know: there are no registers for codes of two tiles.
      if constexpr (Tile::kInTurn) turn = last & parity_ >> 1;
    }
    parity_ ^= 1;
  }

  // Behind the loop: a team with a step less than others meets as many barriers as they do, while
  // they still work. compute-sanitizer's racecheck takes the block's next one for none otherwise.
  __device__ __forceinline__ void make_up_barriers() const {
    const int last_round = steps_ % Tile::kTeams;
    if (last_round == 0 || team_ < last_round) return;
    wait_for_partner();
    wait_for_partner();
  }

  __device__ __forceinline__ bool all_fit() const { return block_scales_.all_fit(); }
  __device__ __forceinline__ int first_step() const { return team_; }
  __device__ __forceinline__ int first_k() const { return team_ * kStreamDepth + 32 * half_; }
  __device__ __forceinline__ int steps() const { return steps_; }

 private:
  // In one thread of the team, if it has that step.
  __device__ __forceinline__ bool asks_for(int step) const {
    return half_ == 0 && step < steps_ && sm90::elect_one();
  }
  __device__ __forceinline__ void copy_x(int step, uint32_t memory, uint32_t full) const {
    sm90::arrive_expecting(full, Tile::kXRowBytes * static_cast<int>(args_.stream.out.M));
    sm90::parts_copy(memory, args_.x, 0, step * Tile::kXParts, full);
  }
  __device__ __forceinline__ void copy_weight(int step, uint32_t memory, uint32_t full) const {
    sm90::arrive_expecting(full, Tile::kCodeBytes + Tile::kScaleBytes);
    sm90::box_copy(memory + Tile::kCodes, args_.codes, first_row_, step * (kStreamDepth / 2), full);
    const int scale_byte = step * (kStreamDepth / Tile::kScaleBlock);
    sm90::box_copy(memory + Tile::kScales, args_.scales, first_row_,
                   scale_byte / Tile::kScaleRowBytes * Tile::kScaleRowBytes, full);
  }

  // Each for the other: where only the one that copies waits it is 0.2 us longer.
  __device__ __forceinline__ void wait_for_partner() const {
    asm volatile("bar.sync %0, 64;" ::"r"(team_ + 1) : "memory");
  }

  // Returns what came of the last codes.
  __device__ static __forceinline__ uint32_t
  multiply_tile(float (&sums)[Tile::kGroups][4], const uint4& low, const uint4& high,
                const typename Scales::Pairs& low_scales, const typename Scales::Pairs& high_scales,
                const uint4 (&x)[Tile::kGroups][4]) {
    uint32_t last = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t a[4], b[4];
      stream_pairs(scalar_t{}, StreamStep<Tile>::word(low, w), a);
      stream_pairs(scalar_t{}, StreamStep<Tile>::word(high, w), b);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = multiply_pairs(scalar_t{}, a[i], low_scales.of[w / 2]);
        b[i] = multiply_pairs(scalar_t{}, b[i], high_scales.of[w / 2]);
      }
      last = a[3];
      // Neighbours have operand A in common.
#pragma unroll
      for (int group = 0; group < Tile::kGroups; ++group) {
        mma(scalar_t{}, sums[group], a[0], b[0], a[1], b[1], x[group][w].x, x[group][w].y);
      }
#pragma unroll
      for (int group = 0; group < Tile::kGroups; ++group) {
        mma(scalar_t{}, sums[group], a[2], b[2], a[3], b[3], x[group][w].z, x[group][w].w);
      }
    }
    return last;
  }

  const BoxPanelArguments& args_;
  const int first_row_, team_, half_, steps_;
  uint32_t memory_, x_full_, weight_full_;  // shared addresses
  uint32_t x_, codes_, scales_;             // of what this lane reads
  uint32_t parity_ = 0;
  Scales block_scales_;
};

}  // namespace my_ops
