// The backward kernel of rows that fit the registers of a block. Device only, needs no torch. With
// a = grad * (weight + offset):
//
//   grad_x      = rstd * (a - x * rstd * mean(a * x * rstd)) (+ grad_sum)
//   grad_weight = sum over rows of grad * x * rstd
//
// A row belongs to `kLanes` neighbouring lanes of a warp or, with kLanes = 0, to a block. Such a
// group walks over rows `groups` apart. Each register of grad and x is loaded with the next row as
// soon as it has been used: two reads and one write bound this kernel. The weight's gradient stays
// in registers from row to row; it is summed over the groups of a block and lands in one row of
// `partial_weight`, which a second kernel adds up in order.
//
// Rows too wide for any block run as two launches over slices of them: `Phase::sums` stores the
// sums of every slice, `Phase::apply` reads all again and adds those sums up.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/reduce.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/phase.cuh"
#include "rmsnorm/row_registers.cuh"
#include "rmsnorm/row_store.cuh"

namespace my_ops {

constexpr int kBackwardLaneThreads = 128;
constexpr int kBackwardVectors = 4;  // chunks of a thread where blocks own rows

// 16 warps on an SM, 64 KB in flight; 12 where 16-bit rows are moved to where they are stored. What
// spills comes back through the same queue as the rows, behind them, and halves the speed.
template <typename x_t, int kVectors, Rows kRows>
constexpr int kBackwardRegisters = kRows == Rows::ragged && sizeof(x_t) == 2 ? 168
                                   : kVectors == 2 && sizeof(x_t) == 4       ? 80
                                                                             : 128;

// What a thread keeps in shared memory: its weights, for want of registers. An odd number of packs,
// so that lanes side by side use all banks.
template <typename x_t, int kVectors>
constexpr int kOwnPacks =
    kVectors * static_cast<int>(sizeof(typename Arithmetic<x_t>::acc_t) / sizeof(x_t)) | 1;

template <typename x_t, typename w_t, int kLanes, int kVectors, Rows kRows, Phase kPhase>
__global__ void __maxnreg__((kBackwardRegisters<x_t, kVectors, kRows>))
    rmsnorm_backward_kernel(const __grid_constant__ BackwardArgs<x_t, w_t> args) {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  constexpr int N = kChunkElements<x_t>;
  constexpr int kWidth = kLanes > 0 ? kLanes : kWarpSize;
  constexpr bool kAligned = kInPacks<kRows>;
  constexpr int kWeightPacks = N * sizeof(acc_t) / kChunkBytes;
  extern __shared__ __align__(16) unsigned char shared[];  // [threads, kOwnPacks] packs
  let_next_kernel_start();

  // What this thread owns.
  const int groups = kLanes > 0 ? kBackwardLaneThreads / kWidth : 1;
  const int group = kLanes > 0 ? threadIdx.x / kWidth : 0;
  const int warp = kLanes > 0 ? 0 : threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWidth;
  const int slices = kLanes > 0 ? 1 : args.slices;
  const int slice = blockIdx.x % slices;
  const int64_t part = blockIdx.x / slices;
  const int64_t row_step = gridDim.x / slices * groups;
  const OwnedColumns owned = owned_columns<N>(args, static_cast<int64_t>(slice) * args.slice_chunks,
                                              warp * args.warp_chunks, args.warp_chunks);

  // Load: the first row, then the weight.
  int64_t row = part * groups + group;
  using Row = RowRegisters<x_t, kVectors, kRows>;
  Row x(args.x, args.x_layout, args.rows, args.H, owned, lane, kWidth);
  Row grad(args.grad, args.grad_layout, args.rows, args.H, owned, lane, kWidth);
  x.begin(row);
  grad.begin(row);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    x.load(v);
    grad.load(v);
  }
  Pack* const own_weight = reinterpret_cast<Pack*>(shared) + threadIdx.x * kOwnPacks<x_t, kVectors>;
  acc_t grad_weight[kVectors][N] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    acc_t weight[N] = {};  // zeros where there is no chunk
    const int index = v * kWidth + lane;
    if (index < owned.chunks) load_weight<kAligned>(args, owned.first + index * N, weight);
    store_own(own_weight + v * kWeightPacks, weight);
  }

  int parity = 0;
  // The trip count is the warp's, for the shuffles: groups without a row left run along.
  const int first_group = kWidth < kWarpSize ? group % (kWarpSize / kWidth) : 0;
  for (; row - first_group < args.rows; row += row_step) {
    x.realign();
    grad.realign();
    if (kWidth < kWarpSize && row >= args.rows) {
      x.clear();
      grad.clear();
    }

    // Load what is added to the row, to have it after the sums; one chunk at a time where there are
    // no registers left for that.
    Row grad_sum_row(args.grad_sum, args.grad_sum_layout, args.rows, args.H, owned, lane, kWidth);
    Pack grad_sum[kVectors];
    if (kPhase != Phase::sums && args.grad_sum != nullptr) {
      grad_sum_row.begin(row);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kAligned) grad_sum[v] = grad_sum_row.load_one(v);
      }
    }

    // Reduce: x^2 and a * x over the row.
    double sums[2] = {0, 0};
    if constexpr (kPhase == Phase::apply) {
      const double* stored = args.partial_sums + row * slices * 2;
      for (int i = threadIdx.x; i < slices; i += blockDim.x) {
        sums[0] += stored[2 * i];
        sums[1] += stored[2 * i + 1];
      }
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        acc_t weight[N];
        load_own(own_weight + v * kWeightPacks, weight);
        add_products<x_t>(x.packs[v], grad.packs[v], weight, sums);
      }
    }
    if constexpr (kLanes > 0) {
      share_halves<kLanes>(lanes_sum_halves<kLanes>(sums), sums);
    } else {
      __shared__ double scratch[2][kMaxBlockWarps][2];
      block_sum_two(sums, scratch[parity]);
      parity ^= 1;
    }
    if constexpr (kPhase == Phase::sums) {
      if (threadIdx.x == 0) {
        args.partial_sums[(row * slices + slice) * 2] = sums[0];
        args.partial_sums[(row * slices + slice) * 2 + 1] = sums[1];
      }
    }
    const RowScale<acc_t> scale = row_scale<acc_t>(sums[0], sums[1], args.inverse_H, args.eps);

    // Compute and store; refill each register as soon as it has been read.
    RowStore<x_t, kWidth, kRows> grad_x_row(args.grad_x + row * args.H, owned, row < args.rows);
    x.begin(row + row_step);
    grad.begin(row + row_step);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      acc_t grad_x[N];
      if constexpr (kPhase != Phase::sums) {
        acc_t weight[N];
        load_own(own_weight + v * kWeightPacks, weight);
        differentiate<x_t>(x.packs[v], grad.packs[v], weight, scale, args, grad_weight[v], grad_x);
      }
      x.load(v);
      grad.load(v);
      if constexpr (kPhase != Phase::sums) {
        if (args.grad_sum != nullptr) {
          if constexpr (!kAligned) grad_sum[v] = grad_sum_row.load_one(v);
          add_pack<x_t>(grad_sum[v], grad_x);
        }
        if (args.grad_x != nullptr) grad_x_row.store(v, narrow_pack<x_t>(grad_x));
      }
    }
  }

  // Store the weight's gradient of this block's rows.
  if (kPhase == Phase::sums || args.partial_weight == nullptr) return;
  acc_t* part_row = args.partial_weight + part * args.H;
  if constexpr (kLanes == 0) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = owned.first + (v * kWidth + lane) * N;
      if (v * kWidth + lane < owned.chunks)
        store_partial<kRows != Rows::ragged>(part_row, column, args.H, grad_weight[v]);
    }
  } else {
    constexpr int kColumns = kWidth * kVectors * N;
    acc_t(*const by_group)[kColumns] = reinterpret_cast<acc_t(*)[kColumns]>(shared);
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < N; ++j) by_group[group][(v * kWidth + lane) * N + j] = grad_weight[v][j];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < args.H; column += blockDim.x) {
      acc_t sum = 0;
      for (int g = 0; g < groups; ++g) sum += by_group[g][column];
      part_row[column] = sum;
    }
  }
}

}  // namespace my_ops
