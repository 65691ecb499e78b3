// The backward kernel of the widest float32 rows, of which a block's part of grad and x together is
// 128 KB. Device only, compute capability 9.0 and later, needs no torch. Trades and names are those
// of backward_wide_kernel.cuh.
//
// A ring that keeps a whole row for its gradient has room for three quarters of the next, and the
// memory waits whenever one of 16 blocks is late: 84 % of the copy rate. The weight and its
// gradient take half of the registers, however many threads compute; but with 256 threads instead
// of 512 the other half has room for a quarter of a row as well. So the first `kHeld` chunks of a
// thread are held in registers and leave the ring at once, and a whole next row comes in meanwhile:
// 98 %. But nothing may spill, as that comes back through the same queue as the rows: with one
// register too few it was 80 %, with half of a row in registers 43 %.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/backward_math.cuh"
#include "rmsnorm/backward_wide_block.cuh"
#include "rmsnorm/backward_widest_ring.cuh"
#include "rmsnorm/registers.cuh"

namespace my_ops {

template <typename x_t>
__global__ void __launch_bounds__(kWidestThreads + kWideExtraThreads, 1)
    rmsnorm_backward_widest_kernel(const __grid_constant__ BackwardArgs<x_t> args) {
#if __CUDA_ARCH__ >= 900
  using acc_t = typename Arithmetic<x_t>::acc_t;
  using Place = RingPlace<kWidestSlots>;
  constexpr int N = kChunkElements<x_t>;
  constexpr int kVectors = kWidestVectors;
  extern __shared__ __align__(128) unsigned char ring[];  // [kWidestSlots, 2, threads] packs
  __shared__ RingBarriers<kWidestSlots> barriers;
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
    release_registers<40>();
    if (thread / kWarpSize == warps) {
      exchange_sums<acc_t>(args, exchanges, part, parts, warps);
    } else if (thread == threads + kWarpSize) {
      fill_widest_ring(args, ring, barriers, owned, threads * N, args.vectors, part, parts);
    }
  } else {
    claim_registers<232>();

    // Load: the weight
    const int chunks = owned.chunks - thread;
    const auto has = [&](int v) { return v < kWidestFewest || v < args.vectors; };
    const auto owns = [&](int v) { return v * threads < chunks; };
    const auto column_of = [&](int v) { return owned.first + (v * threads + thread) * N; };
    acc_t weight[kVectors][N];
    acc_t grad_weight[kVectors][N] = {};
    load_weights(args, owns, column_of, weight);

    const auto packs_at = [&](const Place& place) {
      return reinterpret_cast<const Pack*>(ring) + place.slot * 2 * threads + thread;
    };
    const auto wait_for = [&](const Place& place) { barriers.full[place.slot].wait(place.parity); };
    const auto release = [&](const Place& place) {
      __syncwarp();
      if (thread % kWarpSize == 0) barriers.empty[place.slot].arrive();
    };

    // Reduce: a row's sums, of chunks to be held, then of those that stay in the ring.
    Pack held_x[kVectors] = {};
    Pack held_grad[kVectors] = {};
    double sums[2] = {0, 0};
    const auto hold = [&](const Place& place, int v) {
      wait_for(place);
      if (owns(v)) {
        held_grad[v] = packs_at(place)[0];
        held_x[v] = packs_at(place)[threads];
      }
      release(place);
      add_products<x_t>(held_x[v], held_grad[v], weight[v], sums);
    };
    const auto add_rest = [&](const Place& first, const ExchangeTurn& turn) {
#pragma unroll
      for (int v = kHeld; v < kVectors; ++v) {
        if (!has(v)) break;
        const Place place = first.ahead(v);
        wait_for(place);
        if (!owns(v)) continue;
        add_products<x_t>(packs_at(place)[threads], packs_at(place)[0], weight[v], sums);
      }
      exchanges[turn.index].send(sums);
      sums[0] = 0;
      sums[1] = 0;
    };

    const bool adds = args.grad_sum != nullptr;
    Place first;  // of the row's slots
    ExchangeTurn turn;
    if (part < args.rows) {
#pragma unroll
      for (int v = 0; v < kHeld; ++v) hold(first.ahead(v), v);
      add_rest(first, turn);
    }
    for (int64_t row = part; row < args.rows; row += parts) {
      const Place next = first.ahead(adds ? args.vectors + args.vectors / 2 : args.vectors);
      const bool has_next = row + parts < args.rows;
      exchanges[turn.index].scale_done.wait(turn.parity);
      const RowScale<acc_t> scale = exchanges[turn.index].scale;
      x_t* const grad_x_row = args.grad_x + row * args.H;

      // Compute and store: what is in the ring, then what is held, each replaced by the next row's.
      const auto finish = [&](int v, Pack& x, Pack& grad) {
        acc_t grad_x[N];
        differentiate<x_t>(x, grad, weight[v], scale, args, grad_weight[v], grad_x);
        if (adds) {
          const int before = v < kHeld ? args.vectors - kHeld + v : v - kHeld;
          const Place place = first.ahead(args.vectors + before / 2);
          if (v % 2 == 0) wait_for(place);
          if (owns(v)) add_pack<x_t>(packs_at(place)[v % 2 * threads], grad_x);
          if (v % 2 == 1) release(place);
        }
        if (args.grad_x != nullptr && owns(v)) {
          store_pack(grad_x_row + column_of(v), narrow_pack<x_t>(grad_x));
        }
      };
#pragma unroll
      for (int v = kHeld; v < kVectors; ++v) {
        if (!has(v)) break;
        const Place place = first.ahead(v);
        Pack x = {};
        Pack grad = {};
        if (owns(v)) {
          x = packs_at(place)[threads];
          grad = packs_at(place)[0];
        }
        release(place);
        finish(v, x, grad);
      }
#pragma unroll
      for (int v = 0; v < kHeld; ++v) {
        finish(v, held_x[v], held_grad[v]);
        if (has_next) hold(next.ahead(v), v);
      }
      if (has_next) add_rest(next, turn.next());
      first = next;
      turn = turn.next();
    }

    // Store the weight's gradient of this cluster's rows
    store_weight_gradient(args, part, owns, column_of, grad_weight);
  }
#endif
}

}  // namespace my_ops
