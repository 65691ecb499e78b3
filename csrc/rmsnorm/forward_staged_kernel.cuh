// The forward kernel for wide rows, by the copy engine. Device only, compute capability 9.0 and
// later, needs no torch.
//
// A row belongs to `slices` blocks that form a cluster. The copy engine brings a block's slice into
// shared memory, where it waits for the row's sum. Registers, which do not hold x, hold the first
// of the weight instead, so that it is there before the sum is. Blocks are small and short-lived:
// while one waits for its neighbours, the others on the SM load and store: 97 % of the copy rate.
// Blocks that stay and load the next row meanwhile came to 91 %.
#pragma once

#include <cstdint>

#include "rmsnorm/forward_math.cuh"
#include "rmsnorm/row_sum.cuh"
#include "rmsnorm/staged_slice.cuh"

namespace my_ops {

inline int staged_slice_bytes(int slice_chunks) { return (slice_chunks + 1) * kChunkBytes; }

constexpr int kStagedMaxParts = 32;

// Registers of a thread that loads `kAhead` chunks ahead, of the residual or of the weight. With 4
// chunks of 16 bits five blocks of 256 threads share an SM, with 8 four.
template <typename x_t, typename w_t, int kAhead>
constexpr int kStagedRegisters = sizeof(w_t) > 2                  ? 64
                                 : sizeof(x_t) == 2 && kAhead > 4 ? 56
                                                                  : 48;

template <typename x_t, typename w_t, Access kAccess, bool kAdd, int kAhead>
__global__ void __maxnreg__((kStagedRegisters<x_t, w_t, kAhead>))
    rmsnorm_forward_staged_kernel(const ForwardArgs<x_t, w_t> args) {
#if __CUDA_ARCH__ >= 900
  constexpr int N = kChunkElements<x_t>;
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  extern __shared__ __align__(128) unsigned char staged_bytes[];
  __shared__ MBarrier arrived[kStagedMaxParts];
  __shared__ RowSum row_sum;

  // What this block owns: `chunks` chunks of one row, from column `first`.
  const int64_t row = blockIdx.x / args.slices;
  const int slice = static_cast<int>(blockIdx.x % args.slices);
  const int first_chunk = slice * args.slice_chunks;
  const int row_chunks = static_cast<int>(args.H / N);
  const int chunks = max(0, min(row_chunks - first_chunk, args.slice_chunks));
  const int64_t first = static_cast<int64_t>(first_chunk) * N;

  // Load: the slice into shared memory; meanwhile, what is added to it or the first of the weight
  // into registers. Only where something is added does it pay to begin before all of x is there.
  const int threads = blockDim.x;
  const StagedSlice<kAccess, x_t> x(staged_bytes, args.x + args.x_layout.offset(row) + first,
                                    chunks);
  if (threadIdx.x == 0) {
    for (MBarrier& barrier : arrived) barrier.init(1);
    sm90::fence_barrier_init();
    x.start_copy(arrived, kAdd ? threads : args.slice_chunks);
  }
  row_sum.begin(args.slices);
  __syncthreads();
  Vec<w_t, N> weight[kAhead];
  const int weights = args.weight == nullptr ? 0 : chunks;
  const w_t* from_weight = args.weight + first;
  const auto load_weights = [&] {
    load_run<kAccess>(weight, from_weight + threadIdx.x * N, weights - threadIdx.x, threads, 1);
  };
  if constexpr (!kAdd) {
    load_weights();
    // Before it turns to the barrier of x: 97 % of the copy rate at 65536 columns of bfloat16,
    // without this 89 % (92 % with a float32 weight).
    if constexpr (kAccess == Access::packs) wait_for_loads(weight);
  }

  // Reduce: the sum of squares. What was added takes x's place.
  double sum = 0;
  if constexpr (kAdd) {
    const x_t* from_residual =
        args.residual + args.residual_layout.offset(row) + first + threadIdx.x * N;
    x_t* to_sum = args.sum + row * args.H + first;
    for (int base = 0; base < chunks; base += kAhead * threads) {
      Vec<x_t, N> residual[kAhead];
      load_run<kAccess>(residual, from_residual + base * N, chunks - base - threadIdx.x, threads,
                        0);
#pragma unroll
      for (int v = 0; v < kAhead; ++v) {
        const int chunk = base + v * threads + threadIdx.x;
        if (base + v * threads < chunks) arrived[base / threads + v].wait(0);
        if (chunk < chunks) {
          Vec<x_t, N> value = x.get(chunk);
          add_chunk(value, residual[v]);
          store(to_sum + chunk * N, value);
          x.set(chunk, value);
          sum += add_squares(chunk_sum_t(0), value);
        }
      }
    }
    load_weights();
  } else {
    if (chunks > 0) arrived[0].wait(0);
#pragma unroll 4
    for (int chunk = threadIdx.x; chunk < chunks; chunk += threads) {
      sum += add_squares(chunk_sum_t(0), x.get(chunk));
    }
  }
  sum = row_sum.total(sum, args.slices, slice);

  // Compute and store
  const Normalizer<x_t, w_t> normalizer(args, sum);
  with_loop<kAccess>(args, [&](auto loop) {
    constexpr Loop kLoop = decltype(loop)::value;
    const Output<x_t, kLoop> y(args, row * args.H + first);
    for (int base = threadIdx.x; base < chunks; base += kAhead * threads) {
#pragma unroll
      for (int v = 0; v < kAhead; ++v) {
        const int chunk = base + v * threads;
        if (chunk < chunks) {
          Vec<x_t, N> value = x.get(chunk);
          const auto result = normalizer.template y<kLoop>(value, weight[v]);
          const int next = chunk + kAhead * threads;
          if (next < weights) {
            load_run<kAccess>(reinterpret_cast<Vec<w_t, N>(&)[1]>(weight[v]),
                              from_weight + next * N, weights - next, 1, 1);
          }
          y.store(chunk * N, result);
        }
      }
    }
  });
#endif
}

}  // namespace my_ops
