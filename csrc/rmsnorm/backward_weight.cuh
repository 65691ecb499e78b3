// The weight of a backward and this thread block's part of its gradient. Device only, needs no
// torch.
#pragma once

#include <cstdint>

#include "common/reduce.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/own_packs.cuh"
#include "rmsnorm/pack.cuh"

namespace my_ops {

// Columns [column, column + N) of the weight. Its type is asked at run time: once in a kernel that
// costs nothing, and a third of the kernels need not be compiled.
template <bool kAligned, int N, typename acc_t, typename x_t>
__device__ __forceinline__ void read_weight(const BackwardArgs<x_t>& args, int64_t column,
                                            acc_t (&weight)[N]) {
  if constexpr (sizeof(x_t) == 2) {
    if (args.float_weight) {
      const auto* data = static_cast<const float*>(args.weight);
      widen_chunk(load_chunk<kAligned, N>(data, column, args.H), weight);
      return;
    }
  }
  widen_chunk(load_chunk<kAligned, N>(static_cast<const x_t*>(args.weight), column, args.H),
              weight);
}

// weight + offset at the columns of a chunk.
template <bool kAligned, int N, typename acc_t, typename x_t>
__device__ __forceinline__ void load_weight(const BackwardArgs<x_t>& args, int64_t column,
                                            acc_t (&weight)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) weight[j] = 1;
  if (args.weight == nullptr) return;
  read_weight<kAligned>(args, column, weight);
#pragma unroll
  for (int j = 0; j < N; ++j) weight[j] += static_cast<acc_t>(args.weight_offset);
}

// The same where a chunk holds columns that others own: zeros in their place.
template <int N, typename acc_t, typename x_t>
__device__ __forceinline__ void load_own_weight(const BackwardArgs<x_t>& args,
                                                const OwnedColumns& owned, int position,
                                                acc_t (&weight)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    acc_t value[1] = {0};
    if (owned.has(position + j)) load_weight<false>(args, owned.first + position + j, value);
    weight[j] = value[0];
  }
}

// A thread's weights, in its own packs of shared memory.
template <Rows kRows, int kVectors, int kWidth, typename acc_t, typename x_t>
__device__ __forceinline__ void keep_weights(const BackwardArgs<x_t>& args,
                                             const OwnedColumns& owned, int lane, Pack* own) {
  constexpr int N = kChunkElements<x_t>;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    acc_t weight[N] = {};  // zeros where there is no chunk
    const int index = v * kWidth + lane;
    if constexpr (kHasEdges<kRows>) {
      load_own_weight(args, owned, index * N, weight);
    } else {
      if (index < owned.chunks) {
        load_weight<kLoadsPacks<kRows>>(args, owned.first + index * N, weight);
      }
    }
    store_own(own + v * kWeightPacks<x_t>, weight);
  }
}

// Stores a chunk of a row of partial_weight, in packs. Stores of single elements would be 32 bytes
// apart from lane to lane: those of one row of 8192 alone took 4 us.
template <typename acc_t, int N>
__device__ __forceinline__ void store_partial(acc_t* address, const acc_t (&values)[N]) {
  constexpr int kEach = kChunkBytes / sizeof(acc_t);
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    acc_t part[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) part[j] = values[i + j];
    store_pack(address + i, narrow_pack<acc_t>(part));
  }
}

// The gradient of a warp's columns, of which no other warp has any.
template <Rows kRows, typename acc_t, int kVectors, int N>
__device__ __forceinline__ void store_grad_weight(acc_t* part_row, const OwnedColumns& owned,
                                                  int lane,
                                                  const acc_t (&grad_weight)[kVectors][N]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int index = v * kWarpSize + lane;
    acc_t* const address = part_row + owned.first + index * N;
    if constexpr (kHasEdges<kRows>) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (owned.has(index * N + j)) address[j] = grad_weight[v][j];
      }
    } else {
      if (index < owned.chunks) store_partial(address, grad_weight[v]);
    }
  }
}

// The sum over the groups of a block, which all own the same columns. `shared`: anything, of the
// whole block.
template <Rows kRows, int kGroups, int kWidth, typename acc_t, int kVectors, int N>
__device__ __forceinline__ void store_grad_weight_of_groups(
    acc_t* part_row, int64_t H, const OwnedColumns& owned, unsigned char* shared,
    const acc_t (&grad_weight)[kVectors][N]) {
  constexpr int kColumns = kWidth * kVectors * N;
  acc_t(*const by_group)[kColumns] = reinterpret_cast<acc_t(*)[kColumns]>(shared);
  const int lane = threadIdx.x % kWidth;
  __syncthreads();
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int position = (v * kWidth + lane) * N + j;
      if (!kHasEdges<kRows> || owned.has(position)) {
        by_group[threadIdx.x / kWidth][position - owned.begin] = grad_weight[v][j];
      }
    }
  }
  __syncthreads();
  for (int column = threadIdx.x; column < H; column += blockDim.x) {
    acc_t sum = 0;
    for (int g = 0; g < kGroups; ++g) sum += by_group[g][column];
    part_row[column] = sum;
  }
}

}  // namespace my_ops
