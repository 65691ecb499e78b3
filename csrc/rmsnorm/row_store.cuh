// Storing rows of grad_x, which is dense and our own. Device only, needs no torch.
#pragma once

#include <cstdint>

#include "common/reduce.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/pack.cuh"
#include "rmsnorm/row_edges.cuh"

namespace my_ops {

// Stores the chunks of one row, v = 0, 1, ... in order.
//
// The pack in which a row ends and the next begins is stored element by element, except between
// rows of one warp: the lane that has the row's end hands it to the lane that has the next one's
// beginning. With 8 rows of 111 columns to a warp single elements alone kept the memory pipe as
// busy as all the rest.
template <typename x_t, int kWidth, int kVectors, Rows kRows>
class RowStore {
  static constexpr int N = kChunkElements<x_t>;
  static constexpr bool kMerges = kHasEdges<kRows> && kWidth < kWarpSize;
  using Edges = RowEdges<x_t, kWidth, kVectors, kRows>;

 public:
  // Of a row beyond the last nothing is stored.
  __device__ __forceinline__ RowStore(x_t* data, int64_t row, int64_t rows, int64_t H,
                                      const OwnedColumns& owned, int lane)
      : owned_(owned),
        first_(data + row * H + owned.first + lane * N),
        lane_(lane),
        chunks_(row < rows ? owned.chunks : 0),
        last_(row + 1 == rows),
        merges_(kMerges && H > N) {}

  __device__ __forceinline__ void store(int v, const Pack& pack, const Edges& edges) {
    const int index = v * kWidth + lane_;
    if (index >= chunks_) return;
    x_t* const address = first_ + v * kWidth * N;
    if (!edges.at(v) || edges.whole(v)) {
      store_pack(address, pack);
    } else if (!merges_) {
      store_elements(address, pack, edges.elements(v));
    } else {
      *(v == 0 && lane_ == 0 ? edges.begin_place(lane_) : edges.end_place(lane_)) = pack;
    }
  }

  // After the chunks. All threads of a warp.
  __device__ __forceinline__ void finish(const Edges& edges) {
    if constexpr (kMerges) {
      __syncwarp();
      const int group_lane = threadIdx.x % kWarpSize - lane_;  // the group's first
      const int last = owned_.chunks - 1;
      if (merges_ && chunks_ > 0 && lane_ == 0 && owned_.begin > 0) {
        const Pack begin = *edges.begin_place(0);
        if (group_lane > 0) {
          store_pack(first_, edges.merged(begin, *edges.end_place(kWidth)));
        } else {
          store_elements(first_, begin, edges.elements(0));
        }
      }
      const bool nobody_after = last_ || group_lane == kWarpSize - kWidth;
      if (merges_ && chunks_ > 0 && nobody_after && lane_ == 1 && owned_.columns % N != 0) {
        store_elements(first_ + (last - 1) * N, *edges.end_place(1),
                       (1u << owned_.columns % N) - 1);
      }
      __syncwarp();
    }
  }

 private:
  __device__ __forceinline__ static void store_elements(x_t* address, const Pack& pack,
                                                        unsigned elements) {
    const unsigned words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if ((elements >> j & 1) == 0) continue;
      if constexpr (sizeof(x_t) == 2) {
        reinterpret_cast<unsigned short*>(address)[j] =
            static_cast<unsigned short>(words[j / 2] >> (j % 2 * 16));
      } else {
        constexpr int kWords = sizeof(x_t) / sizeof(unsigned);
#pragma unroll
        for (int i = j * kWords; i < (j + 1) * kWords; ++i) {
          reinterpret_cast<unsigned*>(address)[i] = words[i];
        }
      }
    }
  }

  const OwnedColumns& owned_;
  x_t* const first_;
  const int lane_;
  const int chunks_;
  const bool last_;
  const bool merges_;  // not where a row may begin and end in one chunk
};

}  // namespace my_ops
