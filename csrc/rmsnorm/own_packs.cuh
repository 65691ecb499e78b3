// What a thread of a backward keeps in shared memory, for want of registers. Device only, needs no
// torch.
#pragma once

#include "rmsnorm/backward_args.cuh"

namespace my_ops {

template <typename x_t>
constexpr int kWeightPacks = sizeof(typename Arithmetic<x_t>::acc_t) / sizeof(x_t);  // of a chunk

// Packs of weights and, for rows with edges, a mask for each chunk and a place for a pack that
// waits (row_edges.cuh). An odd number, so that lanes side by side use all banks.
template <typename x_t>
__host__ __device__ constexpr int own_packs(int vectors, Rows lie) {
  return (vectors * kWeightPacks<x_t> + (has_edges(lie) ? vectors + 1 : 0)) | 1;
}

}  // namespace my_ops
