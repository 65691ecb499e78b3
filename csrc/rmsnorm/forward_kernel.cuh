// The forward kernel: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) per row.
// Device only, needs no torch.
//
// A row belongs to `kLanes` neighbouring lanes of a warp (narrow rows) or, with kLanes = 0, to one
// block or to `slices` blocks that form a cluster. Every thread keeps its chunks of x in registers
// between the sum of squares and the product, so x is read once and y written once: device memory
// bounds this kernel. Which thread owns which column follows from the width alone, so a row has the
// same bits in every batch. (forward_staged_kernel.cuh takes wide rows where it can.)
//
// Rows too wide for either run as two launches: `Phase::sums` stores the sum of every slice,
// `Phase::apply` reads x again and adds those sums up.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/overlap.cuh"
#include "common/reduce.cuh"
#include "rmsnorm/forward_math.cuh"
#include "rmsnorm/row_sum.cuh"

namespace my_ops {

constexpr int kForwardMaxThreads = 512;

// A thread with few chunks loads its part of the weight before the reduction as well. The registers
// for it take no block off the SM, and it saves 0.25 us of a small problem's 2.1, and 1 % of a
// large one's time. Others, whose x takes the room, get the weight from the cache.
template <int kLanes, int kVectors, Access kAccess>
constexpr bool kWeightAhead = kLanes == 0 && kVectors == 4 && kAccess == Access::packs;

// Rows of which a lane has few elements of 16 bits follow one another in the same lanes, which then
// load the weight once: 75 % of the copy rate at 111 columns of bfloat16, 69 % without. (float32
// loses by it: 93 % at 255 columns, 98 % without.)
constexpr int kFewElements = 8;
template <typename x_t>
constexpr bool takes_rows_in_turn(int lanes, int vectors) {
  return sizeof(x_t) == 2 && lanes > 0 && vectors == kFewElements;
}
template <typename x_t, int kLanes, int kVectors>
constexpr bool kRowsInTurn = takes_rows_in_turn<x_t>(kLanes, kVectors);

// Only the kernels for the widest rows of a block run in phases, and look at args.phase: a kernel
// for each phase was no faster where it matters, and those were a tenth of the compile time.
template <int kLanes, int kVectors>
constexpr bool kInPhases = kLanes == 0 && kVectors > 4;

// At 80 registers 768 threads share an SM, with 96 KB of x in flight; with few chunks a thread, as
// much takes 1024.
template <typename x_t, typename w_t, int kVectors, Access kAccess>
constexpr int kForwardRegisters =
    kVectors <= 4 && kAccess == Access::packs && sizeof(w_t) <= sizeof(x_t) ? 64 : 80;

template <typename x_t, typename w_t, int kLanes, int kVectors, Access kAccess>
__global__ void __maxnreg__((kForwardRegisters<x_t, w_t, kVectors, kAccess>))
    rmsnorm_forward_kernel(const ForwardArgs<x_t, w_t> args) {
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  constexpr int N = kAccessElements<kAccess, x_t>;
  constexpr bool kAhead = kWeightAhead<kLanes, kVectors, kAccess>;
  constexpr bool kInTurn = kRowsInTurn<x_t, kLanes, kVectors>;
  // Chunks whose squares are added up in chunk_sum_t: 16 bytes of them.
  constexpr int kGroup = kChunkElements<x_t> / N;
  // Chunks of the residual and of the weight that are loaded together.
  constexpr int kBatch = N == 1 ? 8 : kVectors < 4 ? kVectors : 4;

  constexpr bool kLastOnce = kVectors <= 4;  // with eight chunks it makes registers spill

  // A branch around each chunk keeps the compiler from widening several at once, which would take
  // 10 registers. Around single elements of 16 bits branches were a third of the instructions: 70 %
  // of the copy rate at 5125 columns of bfloat16, 73 % without.
  constexpr bool kBranches = N > 1 || sizeof(x_t) > 2;

  // What this thread owns: kVectors chunks that lie kStride apart from column `first` of `row`, of
  // which only the next `left` chunks of the row exist. A warp's chunks are one contiguous run.
  constexpr int kStride = kLanes > 0 ? kLanes : kWarpSize;
  const Phase phase = kInPhases<kLanes, kVectors> ? args.phase : Phase::whole;
  __shared__ RowSum row_sum;
  const int64_t H = args.H;
  const int64_t row_chunks = (H + N - 1) / N;
  int64_t row;
  int slice = 0;
  int64_t first_chunk;
  int64_t end = row_chunks;
  if constexpr (kLanes > 0) {
    const int64_t blocks_before =
        static_cast<int64_t>(blockIdx.x) * (kInTurn ? args.rows_in_turn : 1);
    row = (blocks_before * blockDim.x + threadIdx.x) / kLanes;
    first_chunk = threadIdx.x % kLanes;
  } else {
    row = blockIdx.x / args.slices;
    slice = static_cast<int>(blockIdx.x % args.slices);
    first_chunk = static_cast<int64_t>(slice) * args.slice_chunks +
                  threadIdx.x / kWarpSize * kWarpSize * kVectors + threadIdx.x % kWarpSize;
    end = min(end, static_cast<int64_t>(slice + 1) * args.slice_chunks);
    if (phase == Phase::whole) row_sum.begin(args.slices);
  }
  const int64_t first = first_chunk * N;
  const int owned = static_cast<int>(max(int64_t{0}, end - first_chunk));

  // Wait for the kernel in front, which may still write x: to overlap with that one's end takes
  // 0.4 us off a small problem's 1.8. Where both are short, x is brought to L2 meanwhile, and the
  // next kernel starts before this one's sum, which takes off 0.2 us more.
  const bool few_blocks = kAhead && args.few_blocks;
  if (few_blocks && threadIdx.x == 0) {
    prefetch_to_l2(args.x + args.x_layout.offset(row), static_cast<int>(H * sizeof(x_t)));
  }
  wait_for_previous_kernel();
  Vec<w_t, N> weight[kBatch];
  const auto load_weight = [&](int batch) {
    const int offset = batch * kStride;
    load_run<kAccess, kLastOnce>(weight, args.weight + first + offset * N,
                                 args.weight == nullptr ? 0 : owned - offset, kStride, 1);
  };
  if constexpr (kInTurn) load_weight(0);

  int rows_left = kInTurn ? args.rows_in_turn : 1;
  do {
    // Lanes without a row stay for the shuffles and touch nothing.
    const int left = kLanes > 0 && row >= args.rows ? 0 : owned;

    // Load: all of x first, then what is added to it.
    Vec<x_t, N> x[kVectors];
    load_run<kAccess, kLastOnce>(x, args.x + args.x_layout.offset(row) + first, left, kStride, 0);
    if constexpr (kAhead) load_weight(0);
    if (few_blocks) let_next_kernel_start();
    if (args.residual != nullptr) {
      const x_t* from_residual = args.residual + args.residual_layout.offset(row) + first;
      x_t* to_sum = args.sum + row * H + first;
#pragma unroll
      for (int batch = 0; batch < kVectors; batch += kBatch) {
        const int offset = batch * kStride;
        Vec<x_t, N> residual[kBatch];
        load_run<kAccess, kLastOnce>(residual, from_residual + offset * N, left - offset, kStride,
                                     0);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int v = batch + i;
          if (v * kStride < left) {
            add_chunk(x[v], residual[i]);
            if (phase != Phase::sums) store(to_sum + v * kStride * N, x[v]);
          }
          keep_packed(x[v]);
        }
      }
    }

    // Reduce: the sum of squares, first over the thread's own elements.
    double sum = 0;
    if (phase == Phase::apply) {
      const double* parts = args.partial_sums + row * args.slices;
      for (int part = threadIdx.x; part < args.slices; part += blockDim.x) sum += parts[part];
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; v += kGroup) {
        chunk_sum_t group_sum = 0;
#pragma unroll
        for (int g = 0; g < kGroup; ++g) group_sum = add_squares(group_sum, x[v + g]);
        sum += group_sum;
      }
    }
    if constexpr (kLanes > 0) {
      sum = lanes_sum<kLanes>(sum);
    } else {
      const int blocks = phase == Phase::whole ? args.slices : 1;
      sum = row_sum.total(sum, blocks, slice);
    }
    if (phase == Phase::sums) {
      if (threadIdx.x == 0) args.partial_sums[row * args.slices + slice] = sum;
      return;
    }

    let_next_kernel_start();

    // Compute and store
    const Normalizer<x_t, w_t> normalizer(args, sum);
    with_loop<kAccess>(args, [&](auto loop) {
      constexpr Loop kLoop = decltype(loop)::value;
      const Output<x_t, kLoop> y(args, row * H + first);
#pragma unroll
      for (int batch = 0; batch < kVectors; batch += kBatch) {
        if constexpr (!kAhead && !kInTurn) load_weight(batch);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int v = batch + i;
          const bool exists = v * kStride < left;
          if (kBranches && !exists) continue;
          const auto result = normalizer.template y<kLoop>(x[v], weight[i]);
          if (exists) y.store(v * kStride * N, result);
        }
      }
    });
    if constexpr (kInTurn) row += blockDim.x / kLanes;
  } while (kInTurn && --rows_left > 0);
}

}  // namespace my_ops
