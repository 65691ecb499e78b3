// The backward kernel of rows that fit the registers of a block. Device only, needs no torch.
//
// With a = grad * (weight + offset):
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
// Rows of a width that is no whole number of packs begin anywhere in them, but every 8th (float32:
// 4th) row at the same place. A group takes only such rows: its columns, weights and masks stay the
// same, and it loads and stores whole packs but at the edges (row_edges.cuh), where no element
// needs to be moved. The sums must not show where a row began (class_sums.cuh).
//
// Rows too wide for any block run as two launches over slices of them: `Phase::sums` stores the
// sums of every slice, `Phase::apply` reads all again and adds those sums up.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "common/reduce.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/backward_math.cuh"
#include "rmsnorm/backward_weight.cuh"
#include "rmsnorm/class_sums.cuh"
#include "rmsnorm/phase.cuh"
#include "rmsnorm/row_edges.cuh"
#include "rmsnorm/row_registers.cuh"
#include "rmsnorm/row_store.cuh"

namespace my_ops {

constexpr int kBackwardLaneThreads = 128;
// Chunks of a thread where blocks own rows; of some ragged ones 5 or 6 (ragged_config).
constexpr int kBackwardVectors = 4;

// So few that 16 warps share an SM, with 64 KB in flight; 12 where 16-bit rows are ragged; 28 where
// two chunks of float32 are all that a thread has in flight (256 columns: 97 % of the copy rate, 91
// with 24 warps). But not so few that registers spill: those come back through the same queue as
// the rows, behind them, which halves the speed.
template <typename x_t, int kVectors, Rows kRows>
constexpr int kBackwardRegisters = kRows == Rows::ragged && sizeof(x_t) == 2 ? 168
                                   : kVectors == 2 && sizeof(x_t) == 4       ? 72
                                                                             : 128;

template <typename x_t, int kLanes, int kVectors, Rows kRows, Phase kPhase>
__global__ void __maxnreg__((kBackwardRegisters<x_t, kVectors, kRows>))
    rmsnorm_backward_kernel(const __grid_constant__ BackwardArgs<x_t> args) {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  constexpr int N = kChunkElements<x_t>;
  constexpr int kWidth = kLanes > 0 ? kLanes : kWarpSize;
  constexpr bool kAligned = kLoadsPacks<kRows>;
  constexpr int kOwnPacks = own_packs<x_t>(kVectors, kRows);
  extern __shared__ __align__(16) unsigned char shared[];  // [threads, kOwnPacks] packs
  let_next_kernel_start();

  // What this thread owns.
  constexpr int kGroups = kLanes > 0 ? kBackwardLaneThreads / kWidth : 1;
  const int group = kLanes > 0 ? threadIdx.x / kWidth : 0;
  const int warp = kLanes > 0 ? 0 : threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWidth;
  const int slices = kLanes > 0 ? 1 : args.slices;
  const int slice = blockIdx.x % slices;
  const int64_t part = blockIdx.x / slices;
  const int64_t row_step = gridDim.x / slices * kGroups;
  int64_t row = part * kGroups + group;
  OwnedColumns owned = owned_columns<N>(args, static_cast<int64_t>(slice) * args.slice_chunks,
                                        warp * args.warp_chunks, args.warp_chunks);
  if constexpr (kHasEdges<kRows>) owned.begin_earlier<N>(static_cast<int>(row * args.H % N));

  // Load: the first row, then the weight.
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
  Pack* const own_weight = reinterpret_cast<Pack*>(shared) + threadIdx.x * kOwnPacks;
  const RowEdges<x_t, kWidth, kVectors, kRows> edges(owned, lane,
                                                     own_weight + kVectors * kWeightPacks<x_t>);
  keep_weights<kRows, kVectors, kWidth, acc_t>(args, owned, lane, own_weight);
  acc_t grad_weight[kVectors][N] = {};

  int parity = 0;
  // The trip count is the warp's, for the shuffles: groups that have no row left run along.
  const int first_group = kWidth < kWarpSize ? group % (kWarpSize / kWidth) : 0;
  for (; row - first_group < args.rows; row += row_step) {
    x.realign();
    grad.realign();
    if (kWidth < kWarpSize && row >= args.rows) {
      x.clear();
      grad.clear();
    }

    edges.clear_others(x.packs, grad.packs);

    // Load: what is added to the row, to have it after the sums; one chunk at a time where there
    // are no registers left for that.
    Row grad_sum_row(args.grad_sum, args.grad_sum_layout, args.rows, args.H, owned, lane, kWidth);
    Pack grad_sum[kVectors];
    if (kPhase != Phase::sums && args.grad_sum != nullptr) {
      grad_sum_row.begin(row);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kAligned) grad_sum[v] = grad_sum_row.load_one(v);
      }
      if constexpr (kRows == Rows::in_step) grad_sum_row.load_tail(grad_sum);
    }

    // Reduce: x^2 and a * x over the row.
    double sums[2] = {0, 0};
    double sum;  // one of the two in each half of the lanes
    if constexpr (kPhase == Phase::apply) {
      const double* stored = args.partial_sums + row * slices * 2;
      for (int i = threadIdx.x; i < slices; i += blockDim.x) {
        sums[0] += stored[2 * i];
        sums[1] += stored[2 * i + 1];
      }
      sum = lanes_sum_halves<kWidth>(sums);
    } else {
      RowSums<x_t, kWidth, kRows> row_sums;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!edges.used(v)) continue;
        acc_t weight[N];
        load_own(own_weight + v * kWeightPacks<x_t>, weight);
        row_sums.add(x.packs[v], grad.packs[v], weight);
      }
      sum = row_sums.halves();
    }
    if constexpr (kLanes > 0) {
      share_halves<kLanes>(sum, sums);
    } else {
      __shared__ double scratch[2][kMaxBlockWarps][2];
      block_sum_halves(sum, sums, scratch[parity]);
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
    RowStore<x_t, kWidth, kVectors, kRows> grad_x_row(args.grad_x, row, args.rows, args.H, owned,
                                                      lane);
    x.begin(row + row_step);
    grad.begin(row + row_step);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!edges.used(v)) continue;
      acc_t grad_x[N];
      if constexpr (kPhase != Phase::sums) {
        acc_t weight[N];
        load_own(own_weight + v * kWeightPacks<x_t>, weight);
        differentiate<x_t>(x.packs[v], grad.packs[v], weight, scale, args, grad_weight[v], grad_x);
      }
      x.load(v);
      grad.load(v);
      if constexpr (kPhase != Phase::sums) {
        if (args.grad_sum != nullptr) {
          if constexpr (!kAligned) grad_sum[v] = grad_sum_row.load_one(v);
          add_pack<x_t>(grad_sum[v], grad_x);
        }
        if (args.grad_x != nullptr) grad_x_row.store(v, narrow_pack<x_t>(grad_x), edges);
      }
    }
    if (kPhase != Phase::sums && args.grad_x != nullptr) grad_x_row.finish(edges);
  }

  // Store the weight's gradient of this block's rows.
  if (kPhase == Phase::sums || args.partial_weight == nullptr) return;
  acc_t* part_row = args.partial_weight + part * args.H;
  if constexpr (kLanes == 0) {
    store_grad_weight<kRows>(part_row, owned, lane, grad_weight);
  } else {
    store_grad_weight_of_groups<kRows, kGroups, kWidth>(part_row, args.H, owned, shared,
                                                        grad_weight);
  }
}

}  // namespace my_ops
