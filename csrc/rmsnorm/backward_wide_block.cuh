// What the kernels of backward_wide_kernel.cuh and backward_widest_kernel.cuh begin and end with.
// Device only, compute capability 9.0 and later, needs no torch.
#pragma once

#include <cstdint>

#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/backward_exchange.cuh"
#include "rmsnorm/backward_ring.cuh"
#include "rmsnorm/backward_weight.cuh"

namespace my_ops {

constexpr int kWideExtraThreads = 128;  // a warpgroup, as setmaxnreg wants; two of its warps work

// Sets up a block's barriers, while the cluster gathers. `warps`: that compute.
template <int kSlots, typename acc_t, typename x_t>
__device__ __forceinline__ void set_up_wide_block(const BackwardArgs<x_t>& args,
                                                  RingBarriers<kSlots>& barriers,
                                                  RowExchange<acc_t> (&exchanges)[kExchanges],
                                                  int thread, int warps) {
  if (thread == 0) {
    barriers.init(warps);
    for (RowExchange<acc_t>& exchange : exchanges) exchange.init(warps);
    sm90::fence_barrier_init();
  }
  __syncthreads();
  cluster_arrive(args.slices);
  cluster_wait(args.slices);
}

// The weights of a thread's chunks: zeros where there is none, as a branch would cost registers.
template <int kVectors, int N, typename acc_t, typename x_t, typename Owns, typename ColumnOf>
__device__ __forceinline__ void load_weights(const BackwardArgs<x_t>& args, const Owns& owns,
                                             const ColumnOf& column_of,
                                             acc_t (&weight)[kVectors][N]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    load_weight<true>(args, owns(v) ? column_of(v) : 0, weight[v]);
#pragma unroll
    for (int j = 0; j < N; ++j) weight[v][j] = owns(v) ? weight[v][j] : acc_t(0);
  }
}

// Stores the weight's gradient of a cluster's rows.
template <int kVectors, int N, typename acc_t, typename x_t, typename Owns, typename ColumnOf>
__device__ __forceinline__ void store_weight_gradient(const BackwardArgs<x_t>& args, int64_t part,
                                                      const Owns& owns, const ColumnOf& column_of,
                                                      const acc_t (&grad_weight)[kVectors][N]) {
  if (args.partial_weight == nullptr) return;
  acc_t* part_row = args.partial_weight + part * args.H;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (owns(v)) store_partial(part_row + column_of(v), grad_weight[v]);
  }
}

}  // namespace my_ops
