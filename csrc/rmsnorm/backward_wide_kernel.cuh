// The backward kernel of wide rows, each owned by a cluster of 1 to 16 blocks. Device only, compute
// capability 9.0 and later, needs no torch. The formulas stand in backward_kernel.cuh.
//
// A cluster walks over rows `parts` apart. Between the sums of a row and its gradient lies a round
// trip through the cluster, and a block fills its multiprocessor, so nobody else would work
// meanwhile. Therefore the threads of a block have three trades:
//
//   - one warp exchanges the sums (backward_exchange.cuh);
//   - one thread keeps a ring of rows ahead of the arithmetic (backward_ring.cuh);
//   - the others compute: they add up the next row before they need the scale of this one.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "common/overlap.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/backward_math.cuh"
#include "rmsnorm/backward_wide_block.cuh"
#include "rmsnorm/registers.cuh"
#include "rmsnorm/row_ahead.cuh"

namespace my_ops {

constexpr int kWideVectors = 4;               // chunks of a thread, at most
constexpr int kWideFewest = 3;                // and at least
constexpr int kWideThreads = 512;             // that compute, at most
constexpr int kWideSlots = 3 * kWideVectors;  // of the ring: three rows

// The ring, and a row of what is added to grad_x.
constexpr int kWideThreadBytes = kChunkBytes * (2 * kWideSlots + kWideVectors);

// The launch gives 96 registers to each of 640 threads; the computing ones need a few more, which
// the others release.
template <typename x_t>
__global__ void __launch_bounds__(kWideThreads + kWideExtraThreads, 1)
    rmsnorm_backward_wide_kernel(const __grid_constant__ BackwardArgs<x_t> args) {
#if __CUDA_ARCH__ >= 900
  using acc_t = typename Arithmetic<x_t>::acc_t;
  constexpr int N = kChunkElements<x_t>;
  constexpr int kVectors = kWideVectors;
  constexpr int kSlots = kWideSlots;
  extern __shared__ __align__(128) unsigned char ring[];  // [kSlots, 2, threads] packs
  __shared__ RingBarriers<kSlots> barriers;
  __shared__ RowExchange<acc_t> exchanges[kExchanges];
  let_next_kernel_start();

  // What this block and this thread own.
  const int threads = blockDim.x - kWideExtraThreads;  // that compute
  const int warps = threads / kWarpSize;
  const int thread = threadIdx.x;
  const int slice = blockIdx.x % args.slices;
  const int64_t part = blockIdx.x / args.slices;
  const int64_t parts = gridDim.x / args.slices;
  const OwnedColumns owned =
      owned_columns<N>(args, static_cast<int64_t>(slice) * args.slice_chunks, 0, args.slice_chunks);

  set_up_wide_block(args, barriers, exchanges, thread, warps);

  if (thread >= threads) {
    release_registers<56>();
    if (thread / kWarpSize == warps) {
      exchange_sums<acc_t>(args, exchanges, part, parts, warps);
    } else if (thread == threads + kWarpSize) {
      RingProducer<x_t, kSlots> producer(ring, barriers, threads * N, owned.columns);
      for (int64_t row = part; row < args.rows; row += parts) {
        const x_t* grad_row = args.grad + args.grad_layout.offset(row) + owned.first;
        const x_t* x_row = args.x + args.x_layout.offset(row) + owned.first;
        for (int v = 0; v < args.vectors; ++v) producer.send(grad_row, v, x_row, v);
      }
    }
  } else {
    claim_registers<104>();

    // Load: the weight, and what is added to the first row
    const auto has = [&](int v) { return v < kWideFewest || v < args.vectors; };
    const auto owns = [&](int v) { return v * threads + thread < owned.chunks; };
    const auto column_of = [&](int v) { return owned.first + (v * threads + thread) * N; };
    acc_t weight[kVectors][N];
    acc_t grad_weight[kVectors][N] = {};
    load_weights(args, owns, column_of, weight);

    RowAhead<x_t, kVectors> more(
        args.grad_sum, args.grad_sum_layout, args.rows, owned, thread, threads,
        reinterpret_cast<Pack*>(ring) + kSlots * 2 * threads + thread, threads);
    if (args.grad_sum != nullptr) {
      more.begin(part);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) more.request(v);
    }
    const auto packs_at = [&](const RingPlace<kSlots>& place) {
      return reinterpret_cast<const Pack*>(ring) + place.slot * 2 * threads + thread;
    };
    double sums[2] = {0, 0};
    const auto add_slot = [&](const RingPlace<kSlots>& place, int v) {
      barriers.full[place.slot].wait(place.parity);
      if (!owns(v)) return;
      const Pack* packs = packs_at(place);
      add_products<x_t>(packs[threads], packs[0], weight[v], sums);
    };
    const auto send = [&](const ExchangeTurn& turn) {
      exchanges[turn.index].send(sums);
      sums[0] = 0;
      sums[1] = 0;
    };

    // Reduce: the first row
    RingPlace<kSlots> first;  // of the row's slots
    ExchangeTurn turn;
    if (part < args.rows) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (has(v)) add_slot(first.ahead(v), v);
      }
      send(turn);
    }
    for (int64_t row = part; row < args.rows; row += parts) {
      // Reduce: the next row
      const RingPlace<kSlots> next = first.ahead(args.vectors);
      if (row + parts < args.rows) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (has(v)) add_slot(next.ahead(v), v);
        }
        send(turn.next());
      }

      // Compute and store; each slot is empty as soon as all have read it.
      exchanges[turn.index].scale_done.wait(turn.parity);
      const RowScale<acc_t> scale = exchanges[turn.index].scale;
      if (args.grad_sum != nullptr) more.begin(row + parts);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!has(v)) {
          if (args.grad_sum != nullptr) more.request(v);  // of nothing: take() counts them
          continue;
        }
        const RingPlace<kSlots> place = first.ahead(v);
        Pack x = {};
        Pack grad = {};
        if (owns(v)) {
          x = packs_at(place)[threads];
          grad = packs_at(place)[0];
        }
        __syncwarp();
        if (thread % kWarpSize == 0) barriers.empty[place.slot].arrive();
        acc_t grad_x[N];
        differentiate<x_t>(x, grad, weight[v], scale, args, grad_weight[v], grad_x);
        if (args.grad_sum != nullptr) {
          add_pack<x_t>(more.take(v), grad_x);
          more.request(v);
        }
        if (args.grad_x != nullptr && owns(v)) {
          store_pack(args.grad_x + row * args.H + column_of(v), narrow_pack<x_t>(grad_x));
        }
      }
      first = next;
      turn = turn.next();
    }

    // Store the weight's gradient of this cluster's rows
    store_weight_gradient(args, part, owns, column_of, grad_weight);
  }
#endif
}

}  // namespace my_ops
