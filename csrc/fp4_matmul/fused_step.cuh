// Parts of the fused kernel's loop: the barriers of its stages, and the decoding of a slot. Device
// only, needs no torch.
#pragma once

#include <type_traits>

#include "fp4_matmul/fused_tile.cuh"

namespace my_ops {

template <typename Tile>
struct FusedBarriers {
  uint32_t full, empty;  // shared addresses of the first ones

  __device__ __forceinline__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty + stage * 8) : "memory");
    }
  }
};

// A place in the sequence of stages that a block goes through, tile after tile.
template <typename Tile>
struct StageCursor {
  int stage;
  uint32_t parity;

  __device__ __forceinline__ explicit StageCursor(int position)
      : stage(position % Tile::kStages), parity(position / Tile::kStages & 1) {}
  __device__ __forceinline__ void advance(int count) {
    stage += count;
    if (stage >= Tile::kStages) {
      stage -= Tile::kStages;
      parity ^= 1;
    }
  }
};

// The scales of a slot, as this lane needs them.
template <typename Tile>
struct SlotScales {
  using scalar_t = typename Tile::scalar_t;
  static constexpr bool kMx = Tile::kFormat == Fp4Format::mxfp4;
  uint32_t low[2], high[2];  // pairs for words 0-1 and 2-3 of either row
  uint32_t low_byte = 0, high_byte = 0;
  bool fits = true;  // for the whole warp

  __device__ __forceinline__ SlotScales(const uint8_t* slot, float factor) {
    const int lane = threadIdx.x % 32;
    const uint8_t* const scales = slot + Tile::kCodeBytes;
    if constexpr (!kMx) {
      const auto* const two = reinterpret_cast<const uint16_t*>(scales) + lane;
      nvfp4_scale_pairs<scalar_t>(two[0], factor, low);
      nvfp4_scale_pairs<scalar_t>(two[32], factor, high);
    } else {
      low_byte = scales[lane];
      high_byte = scales[lane + 32];
      if constexpr (std::is_same_v<scalar_t, __half>) {
        // Others than these are of blocks of zeros, or the host has been told (misfits).
        low_byte = min(max(low_byte, 109u), 133u);
        high_byte = min(max(high_byte, 109u), 133u);
      } else {
        fits = __all_sync(~0u, e8m0_fits(scalar_t{}, low_byte) && e8m0_fits(scalar_t{}, high_byte));
      }
      low[0] = low[1] = e8m0_pair(scalar_t{}, low_byte);
      high[0] = high[1] = e8m0_pair(scalar_t{}, high_byte);
    }
  }

  // Word w of both rows as the operands A of two instructions.
  __device__ __forceinline__ void decode_words(int w, uint32_t low_word, uint32_t high_word,
                                               uint32_t (&fragments)[2][4]) const {
    uint32_t a[4], b[4];
    if (!kMx || std::is_same_v<scalar_t, __half> || fits) {
      decode<scalar_t>(low_word, low[w / 2], a);
      decode<scalar_t>(high_word, high[w / 2], b);
    } else {
      decode_wide(low_word, low_byte, a);
      decode_wide(high_word, high_byte, b);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fragments[i / 2][i % 2 * 2] = a[i];
      fragments[i / 2][i % 2 * 2 + 1] = b[i];
    }
  }
};

}  // namespace my_ops
