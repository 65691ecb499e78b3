// The backward kernels of rmsnorm. Device only, needs no torch. With a = grad * (weight + offset):
//
//   grad_x      = rstd * (a - x * rstd * mean(a * x * rstd)) (+ grad_sum)
//   grad_weight = sum over rows of grad * x * rstd
//
// A group of threads, divided as in forward_kernel.cuh, walks over rows `groups` apart. Its chunks
// of grad and x pass through a ring in shared memory that runs ahead of the arithmetic by more than
// a row, so loads stay in flight during the reduction: two reads and one write bound this kernel.
//
// The weight's gradient is summed in registers over the rows of a group, then over the groups of a
// block, and lands in one row of `partial_weight`; a second kernel adds those rows up in order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/reduce.cuh"
#include "rmsnorm/backward_ring.cuh"
#include "rmsnorm/chunk.cuh"
#include "rmsnorm/phase.cuh"

namespace my_ops {

template <typename x_t, typename w_t, int kLanes, bool kAligned, Phase kPhase>
__global__ void __launch_bounds__(kBackwardMaxThreads)
    rmsnorm_backward_kernel(const BackwardArgs<x_t, w_t> args) {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  constexpr int N = kChunkElements<x_t>;
  constexpr int kVectors = kBackwardVectors<x_t>;

  // What this thread owns.
  const int64_t H = args.H;
  const int stride = kLanes > 0 ? kLanes : blockDim.x;
  const int groups_per_block = kLanes > 0 ? blockDim.x / stride : 1;
  const int group = kLanes > 0 ? threadIdx.x / stride : 0;
  const int slice = kLanes > 0 ? 0 : blockIdx.x % args.slices;
  const int64_t part = kLanes > 0 ? blockIdx.x : blockIdx.x / args.slices;
  const int64_t parts = kLanes > 0 ? gridDim.x : gridDim.x / args.slices;
  OwnedChunks owned;
  owned.first_row = part * groups_per_block + group;
  owned.row_step = parts * groups_per_block;
  owned.first = static_cast<int64_t>(slice) * args.slice_chunks + threadIdx.x % stride;
  owned.stride = stride;
  const int64_t end = min((H + N - 1) / N, static_cast<int64_t>(slice + 1) * args.slice_chunks);
  owned.count = static_cast<int>((end - owned.first + stride - 1) / stride);
  const auto column_of = [&](int v) { return (owned.first + v * stride) * N; };
  if constexpr (kLanes == 0 && kPhase == Phase::whole) cluster_arrive(args.slices);

  ChunkRing<x_t, kAligned> ring(args, owned);
#pragma unroll 1
  for (int slot = 0; slot < kRingSlots; ++slot) ring.fill(slot, slot % kVectors);

  Vec<w_t, N> weight[kVectors];
  acc_t grad_weight[kVectors][N] = {};
  const bool has_weight = args.weight != nullptr;
  const acc_t offset = has_weight ? static_cast<acc_t>(args.weight_offset) : acc_t(0);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (has_weight && v < owned.count) {
      weight[v] = load_chunk<kAligned, N>(args.weight, column_of(v), H);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) weight[v].elements[j] = narrow<w_t>(acc_t(1));
    }
  }
  if constexpr (kLanes == 0 && kPhase == Phase::whole) cluster_wait(args.slices);

  int first_slot = 0;
  int parity = 0;
  // The trip count is the block's, for the shuffles: groups without a row left run along.
  for (int64_t row = owned.first_row; row - group < args.rows; row += owned.row_step) {
    const auto slot_of = [&](int v) {
      const int slot = first_slot + v;
      return slot < kRingSlots ? slot : slot - kRingSlots;
    };

    // Reduce: x^2 and a * x over the row, while the next rows are on their way.
    double sums[2] = {0, 0};
    if constexpr (kPhase == Phase::apply) {
      const double* stored = args.partial_sums + row * args.slices * 2;
      for (int i = threadIdx.x; i < args.slices; i += blockDim.x) {
        sums[0] += stored[2 * i];
        sums[1] += stored[2 * i + 1];
      }
    } else {
      __pipeline_wait_prior(kRingSlots - kVectors);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (v >= owned.count) continue;
        acc_t x[N];
        acc_t grad[N];
        acc_t w[N];
        widen_chunk(ring.x(slot_of(v)), x);
        widen_chunk(ring.grad(slot_of(v)), grad);
        keep_packed(weight[v]);
        widen_chunk(weight[v], w);
        chunk_sum_t squares = 0;
        chunk_sum_t products = 0;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const chunk_sum_t value = x[j];
          const acc_t a = grad[j] * (w[j] + offset);
          squares += value * value;
          products += a * value;
        }
        sums[0] += squares;
        sums[1] += products;
      }
    }
    if constexpr (kLanes > 0) {
      sums[0] = lanes_sum<kLanes>(sums[0]);
      sums[1] = lanes_sum<kLanes>(sums[1]);
    } else {
      __shared__ SumScratch<double, 2> scratch[2];
      blocks_sum(sums, scratch[parity], kPhase == Phase::whole ? args.slices : 1);
      parity ^= 1;
    }

    // Compute and store, and refill each slot as soon as it has been read.
    if constexpr (kPhase == Phase::sums) {
      if (threadIdx.x == 0) {
        args.partial_sums[(row * args.slices + slice) * 2] = sums[0];
        args.partial_sums[(row * args.slices + slice) * 2 + 1] = sums[1];
      }
    } else {
      __pipeline_wait_prior(kRingSlots - kVectors);
    }
    const double rstd_exact = rsqrt(sums[0] * args.inverse_H + args.eps);
    const acc_t rstd = static_cast<acc_t>(rstd_exact);
    const acc_t mean = static_cast<acc_t>(sums[1] * args.inverse_H * rstd_exact);
    const x_t* grad_sum = args.grad_sum + args.grad_sum_layout.offset(row);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (kPhase != Phase::sums && row < args.rows && v < owned.count) {
        acc_t x[N];
        acc_t grad[N];
        acc_t w[N];
        widen_chunk(ring.x(slot_of(v)), x);
        widen_chunk(ring.grad(slot_of(v)), grad);
        keep_packed(weight[v]);
        widen_chunk(weight[v], w);
        acc_t grad_x[N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const acc_t normalized = x[j] * rstd;
          grad_x[j] = rstd * (grad[j] * (w[j] + offset) - normalized * mean);
          grad_weight[v][j] += grad[j] * normalized;
        }
        if (args.grad_sum != nullptr) {
          acc_t more[N];
          widen_chunk(load_chunk<kAligned, N>(grad_sum, column_of(v), H), more);
#pragma unroll
          for (int j = 0; j < N; ++j) grad_x[j] += more[j];
        }
        if (args.grad_x != nullptr) {
          Vec<x_t, N> chunk;
          narrow_chunk(grad_x, chunk);
          store_chunk<kAligned>(args.grad_x + row * H, column_of(v), H, chunk);
        }
      }
      ring.fill(slot_of(v), (v + kRingSlots) % kVectors);
    }
    first_slot = slot_of(kVectors);
  }
  __pipeline_wait_prior(0);

  // Store the weight's gradient of this block's rows.
  if (kPhase == Phase::sums || args.partial_weight == nullptr) return;
  acc_t* part_row = args.partial_weight + part * H;
  if constexpr (kLanes == 0) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v >= owned.count) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (column_of(v) + j < H) part_row[column_of(v) + j] = grad_weight[v][j];
      }
    }
  } else {
    constexpr int kWidth = kLanes * kVectors * N;
    acc_t* const by_group = reinterpret_cast<acc_t*>(ring.bytes());  // [groups_per_block, kWidth]
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        by_group[group * kWidth + column_of(v) + j] = grad_weight[v][j];
      }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < H; column += blockDim.x) {
      acc_t sum = 0;
      for (int g = 0; g < groups_per_block; ++g) sum += by_group[g * kWidth + column];
      part_row[column] = sum;
    }
  }
}

}  // namespace my_ops
