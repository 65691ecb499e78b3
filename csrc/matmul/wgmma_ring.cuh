// The stages in shared memory that the producer fills and the consumers empty. Device only, needs
// no torch.
#pragma once

#include <cstdint>

namespace my_ops {
namespace tensor_core {

// Position in the ring of stages: the same sequence for the producer and the consumers.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ int last() const { return stage == 0 ? kStages - 1 : stage - 1; }
};

// Where things lie in a block's shared memory: stages, their scales, two barriers for each.
template <class Tile>
struct Shared {
  uint32_t base;
  __device__ __forceinline__ uint32_t stage(int index) const {
    return base + index * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t scales(int index) const {
    return base + Tile::kStages * Tile::kStageBytes + index * Tile::kScaleBytes;
  }
  __device__ __forceinline__ uint32_t full(int index) const {
    return scales(Tile::kStages) + index * 8;
  }
  __device__ __forceinline__ uint32_t empty(int index) const {
    return full(index) + Tile::kStages * 8;
  }
};

}  // namespace tensor_core
}  // namespace my_ops
