// One slice of K of all rows of a block, for the warp of the gemv kernel that has it. Device only,
// sm_90a, needs no torch.
#pragma once

#include "fp4_matmul/gemv_block.cuh"
#include "fp4_matmul/gemv_step.cuh"
#include "fp4_matmul/opaque.cuh"
#include "fp4_matmul/quad.cuh"

namespace my_ops {

// Of a slice a lane has 64 codes in line of row lane / 4 of each unit, in both formats. In aligned
// rows (kAligned) all rows of a unit begin in the same bank, so odd ones have their two halves of
// 32 codes in each other's place, and with them mma's sums.
template <typename Tile, bool kAligned>
class GemvSlice {
 public:
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  static constexpr bool kHalf = std::is_same_v<scalar_t, __half>;

  __device__ __forceinline__ GemvSlice(const GemvBlock<Tile>& block, int warp)
      : block_(block),
        odd_(opaque(kAligned && threadIdx.x / 4 % 2)),
        first_lane_(opaque(threadIdx.x % 4 == 0)),
        x_(block.x + warp * kGemvDepth * 2) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    codes_ = block.codes_of(g) + warp * kGemvDepth / 2 + t * 32 + (odd_ ? 16 : 0);
    scales_ = block.scales_of(g) + (warp * kGemvDepth + t * 64) / Tile::kScaleBlock;
    sums_ = block.sums + (warp * sum_pitch(block) + g) * 4;
    // Behind the beginning of a word, of all units.
    shift_ = opaque(kMx || kAligned ? 0 : scales_ % 4 * 8);
    if (!kMx) scales_ -= scales_ % 4;
  }

  // Floats from the sums of one warp to the next one's, so that lanes meet no bank twice.
  __device__ static __forceinline__ int sum_pitch(const GemvBlock<Tile>& block) {
    return block.units * kGemvRows + 4;
  }

  // Brings the slice's x into the order of the codes, lifted if it can be (stream_columns.cuh),
  // each lane eight elements of it, and takes from it what belongs to the lane's column.
  __device__ __forceinline__ bool take_x() {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto place = [&](int chunk) { return x_ + (chunk ^ (chunk >> 3)) * 16; };
    uint4 v = pair_order(load_shared16(x_ + lane * 16));
    bool lifted = true;
    if constexpr (!kHalf) {
      lifted = __all_sync(~0u, can_lift_all(v));
      if (lifted) {
        v = {multiply_pairs(scalar_t{}, v.x, kColumnLift),
             multiply_pairs(scalar_t{}, v.y, kColumnLift),
             multiply_pairs(scalar_t{}, v.z, kColumnLift),
             multiply_pairs(scalar_t{}, v.w, kColumnLift)};
      }
    }
    __syncwarp();
    store_shared16(place(lane), v);
    __syncwarp();
    if (g / 2 == t) {
#pragma unroll
      for (int w = 0; w < 4; ++w) step_.x[w] = load_shared16(place(t * 8 + g % 2 * 4 + w));
    }
    return lifted;
  }

  // The slice's sums of all units as they come, to shared memory.
  __device__ __forceinline__ void multiply(bool lifted, float factor) {
    const int units = opaque(block_.units);
    const int codes = opaque(kGemvRows * block_.pitch);
    const int scales = opaque(kGemvRows * block_.row_scales);
    const uint32_t order = opaque(kMx ? (odd_ ? 0x4401 : 0x4410) : (odd_ ? 0x1032 : 0x3210));
    uint32_t barrier = block_.unit_barrier(0);
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      sm90::wait_barrier(barrier, 0);
      const uint4 first = load_codes(codes_),
                  second = load_codes(kAligned ? codes_ ^ 16 : codes_ + 16);
      const uint32_t bytes = __byte_perm(load_scales(), 0, order);
      step_.codes[0] = first;
      step_.codes[1] = second;
      step_.scales[0] = bytes & (kMx ? 0xFFu : 0xFFFFu);
      step_.scales[1] = bytes >> (kMx ? 8 : 16);
      float products[2];
      step_.multiply(products, lifted, factor, odd_);
      const float sum = sum_of_quad(products[0] + products[1]);
      if (first_lane_) store_shared4(sums_, sum);
      sums_ += kGemvRows * 4;
      codes_ += codes;
      scales_ += scales;
      barrier += 8;
    }
  }

 private:
  __device__ static __forceinline__ uint4 load_codes(uint32_t from) {
    return kAligned ? load_shared16(from) : load_shared16_by_8(from);
  }
  __device__ __forceinline__ uint32_t load_scales() const {
    if constexpr (kMx) return load_shared_bytes<2, kAligned>(scales_);
    if constexpr (kAligned) return load_shared_bytes<4>(scales_);
    return __funnelshift_r(load_shared_bytes<4>(scales_), load_shared_bytes<4>(scales_ + 4),
                           shift_);
  }

  const GemvBlock<Tile>& block_;
  const int odd_, first_lane_;
  int shift_;
  uint32_t x_, codes_, scales_, sums_;  // shared addresses
  GemvStep<Tile> step_;
};

}  // namespace my_ops
