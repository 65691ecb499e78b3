// The forward kernel: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) per row.
// Device only, needs no torch.
//
// A row belongs to `kLanes` neighbouring lanes of a warp (narrow rows) or, with kLanes = 0, to
// `slices` blocks that form a cluster (wide rows; most have one block). Every thread keeps its
// chunks of x in registers between the sum of squares and the product, so x is read once and y
// written once: device memory bounds this kernel. Which thread owns which column follows from the
// width alone, so a row has the same bits in every batch.
//
// Rows too wide for a cluster run as two launches: `Phase::sums` stores the sum of every slice,
// `Phase::apply` reads x again and adds those sums up.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/reduce.cuh"
#include "rmsnorm/chunk.cuh"
#include "rmsnorm/forward_args.cuh"
#include "rmsnorm/phase.cuh"

namespace my_ops {

// At 80 registers 768 threads share an SM, 96 KB of x in flight; the weight is not kept in
// registers for that reason. It comes from the cache.
constexpr int kForwardMaxThreads = 512;
constexpr int kForwardRegisters = 80;

template <typename x_t, typename w_t, int kLanes, int kVectors, bool kAligned, Phase kPhase>
__global__ void __maxnreg__(kForwardRegisters)
    rmsnorm_forward_kernel(const ForwardArgs<x_t, w_t> args) {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  constexpr int N = kChunkElements<x_t>;

  // What this thread owns: every `stride`-th chunk of its row's slice, from `first`.
  using chunk_t = std::conditional_t<kPhase == Phase::whole, int, int64_t>;
  const int64_t H = args.H;
  int64_t row;
  int slice = 0;
  chunk_t first;
  int stride;
  chunk_t end = static_cast<chunk_t>((H + N - 1) / N);
  if constexpr (kLanes > 0) {
    row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
    first = threadIdx.x % kLanes;
    stride = kLanes;
    if (row >= args.rows) end = 0;  // stays for the shuffles, touches nothing
  } else {
    row = blockIdx.x / args.slices;
    slice = static_cast<int>(blockIdx.x % args.slices);
    first = static_cast<chunk_t>(slice) * args.slice_chunks + threadIdx.x;
    stride = blockDim.x;
    end = min(end, static_cast<chunk_t>(slice + 1) * args.slice_chunks);
    if constexpr (kPhase == Phase::whole) cluster_arrive(args.slices);
  }
  const auto for_each_chunk = [&](auto&& use) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const chunk_t chunk = first + v * stride;
      if (chunk < end) use(v, static_cast<int64_t>(chunk) * N);
    }
  };

  // Load: all of x first, then what is added to it.
  Vec<x_t, N> x[kVectors] = {};
  const x_t* x_row = args.x + args.x_layout.offset(row);
  for_each_chunk([&](int v, int64_t column) { x[v] = load_chunk<kAligned, N>(x_row, column, H); });
  if (args.residual != nullptr) {
    Vec<x_t, N> residual[kVectors];
    const x_t* residual_row = args.residual + args.residual_layout.offset(row);
    for_each_chunk([&](int v, int64_t column) {
      residual[v] = load_chunk<kAligned, N>(residual_row, column, H);
    });
    // Statistics are taken of the rounded sum, which is what backward and the caller see.
    for_each_chunk([&](int v, int64_t column) {
      acc_t values[N];
      acc_t more[N];
      widen_chunk(x[v], values);
      widen_chunk(residual[v], more);
#pragma unroll
      for (int j = 0; j < N; ++j) values[j] += more[j];
      narrow_chunk(values, x[v]);
      if constexpr (kPhase != Phase::sums)
        store_chunk<kAligned>(args.sum + row * H, column, H, x[v]);
    });
  }

  // Reduce: the sum of squares, first over the thread's own elements.
  double sums[1] = {0};
  if constexpr (kPhase == Phase::apply) {
    const double* parts = args.partial_sums + row * args.slices;
    for (int part = threadIdx.x; part < args.slices; part += blockDim.x) sums[0] += parts[part];
  } else {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      acc_t values[N];
      widen_chunk(x[v], values);
      chunk_sum_t chunk_sum = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        chunk_sum += static_cast<chunk_sum_t>(values[j]) * static_cast<chunk_sum_t>(values[j]);
      }
      sums[0] += chunk_sum;
    }
  }
  if constexpr (kLanes > 0) {
    sums[0] = lanes_sum<kLanes>(sums[0]);
  } else {
    __shared__ SumScratch<double, 1> scratch;
    const int blocks = kPhase == Phase::whole ? args.slices : 1;
    cluster_wait(blocks);
    blocks_sum(sums, scratch, blocks);
  }
  if constexpr (kPhase == Phase::sums) {
    if (threadIdx.x == 0) args.partial_sums[row * args.slices + slice] = sums[0];
    return;
  }

  // Compute and store. rstd in two parts and the error of x * rstd keep float32 outputs within one
  // unit in the last place of the exact result.
  const double rstd_exact = rsqrt(sums[0] / static_cast<double>(H) + args.eps);
  const acc_t rstd = static_cast<acc_t>(rstd_exact);
  const acc_t rstd_rest = static_cast<acc_t>(rstd_exact - rstd);
  const acc_t offset = static_cast<acc_t>(args.weight_offset);
  for_each_chunk([&](int v, int64_t column) {
    acc_t w[N];
    if (args.weight != nullptr) {
      widen_chunk(load_chunk<kAligned, N>(args.weight, column, H), w);
    }
    acc_t values[N];
    keep_packed(x[v]);
    widen_chunk(x[v], values);
    acc_t normalized[N];
    acc_t error[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      normalized[j] = values[j] * rstd;
      error[j] = fma(values[j], rstd_rest, fma(values[j], rstd, -normalized[j]));
    }
    if (args.round_before_weight) {
      narrow_chunk(normalized, x[v]);
      widen_chunk(x[v], normalized);
#pragma unroll
      for (int j = 0; j < N; ++j) error[j] = 0;
    }
    acc_t y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      w[j] = args.weight == nullptr ? acc_t(1) : w[j] + offset;
      y[j] = fma(normalized[j], w[j], error[j] * w[j]);
    }
    store_output<kAligned, x_t>(args.y, args.output_type, row, column, H, y);
  });
}

}  // namespace my_ops
