// How x comes to a warp of the stream kernel: by way of shared memory into the registers of mma's
// operand B. Device only, needs no torch.
#pragma once

#include "fp4_matmul/fp4_fragment.cuh"
#include "fp4_matmul/stream_ring.cuh"

namespace my_ops {

constexpr int kStreamXBytes = kStreamDepth * 2;  // of a row, in a step

__device__ __forceinline__ uint4 load_shared16(const uint8_t* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// Two calls, as for one with either pointer amax would have to lie in memory: writing it there
// waits for it, in front of the next copies.
template <typename Tile>
__device__ __forceinline__ FragmentScale stream_scale(const StreamArguments& args, float amax) {
  using scalar_t = typename Tile::scalar_t;
  return args.amax == nullptr ? fragment_scale<scalar_t, Tile::kFormat>(nullptr)
                              : fragment_scale<scalar_t, Tile::kFormat>(&amax);
}

// A step of x. A lane has of row lane / 4 of each group the elements at the same k as its codes;
// with kColumns lane 8 t + 4 m + t of x's row m alone, and the other columns of B are zeros.
template <typename Tile>
struct StreamX {
  uint4 words[Tile::kGroups][8];

  // Where a lane's copies of a step begin, in the first row.
  __device__ static __forceinline__ const uint16_t* source(const StreamArguments& args, int k) {
    return static_cast<const uint16_t*>(args.x) + k + threadIdx.x % 32 * 8;
  }

  // Starts the copies of a step, whole rows: straight into registers lanes would read 16 bytes 64
  // bytes apart, and the 17 MB of 8 rows took 2 us longer.
  __device__ static __forceinline__ void copy(const StreamArguments& args, uint8_t* to, int k) {
    copy(args, shared_address(to), source(args, k), k);
  }
  __device__ static __forceinline__ void copy(const StreamArguments& args, uint32_t to,
                                              const uint16_t* from, int k) {
    constexpr int kRows = Tile::kColumns ? kStreamColumns : 8 * Tile::kGroups;
    const int lane = threadIdx.x % 32;
    const int valid = k + lane * 8 < static_cast<int>(args.out.K) ? 16 : 0;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row < static_cast<int>(args.out.M)) {
        copy_async_to<16>(to + row * kStreamXBytes + place(row, lane), from, valid);
      }
      from += args.x_stride;
    }
  }

  // Rows that x has not repeat its last one; what comes of them is not stored.
  __device__ __forceinline__ void take(const uint8_t* from, int M) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t kept = !Tile::kColumns || g / 2 == t ? ~0u : 0u;
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      const int row = min(Tile::kColumns ? g % 2 : 8 * group + g, M - 1);
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const int chunk = w / 4 * 16 + t * 4 + w % 4;
        const uint4 v = pair_order(load_shared16(from + row * kStreamXBytes + place(row, chunk)));
        words[group][w] = {v.x & kept, v.y & kept, v.z & kept, v.w & kept};
      }
    }
  }

 private:
  // The byte of a 16-byte chunk in its row, so that eight lanes of two rows meet no bank twice.
  __device__ static __forceinline__ int place(int row, int chunk) {
    return (chunk ^ ((chunk >> 3 & 1) | (row & 1) << 1)) * 16;
  }
};

}  // namespace my_ops
