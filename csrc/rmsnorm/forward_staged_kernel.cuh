// The forward kernel for wide rows on GPUs with a copy engine (compute capability 9.0 on).
// Device only, needs no torch.
//
// A row belongs to `slices` blocks that form a cluster. The copy engine brings a block's slice into
// shared memory, where it waits for the row's sum. Registers, which do not hold x, hold the first
// of the weight instead, so that it is there before the sum is. Blocks are small and short-lived:
// while one waits for its neighbours, the others on the SM load and store: 97 % of the copy rate.
// Blocks that stay and load the next row meanwhile came to 91 %.
#pragma once

#include <cstdint>

#include "rmsnorm/bulk_copy.cuh"
#include "rmsnorm/forward_math.cuh"
#include "rmsnorm/row_sum.cuh"

namespace my_ops {

// A slice of a row in shared memory, as far from a 16-byte boundary as it is in memory.
template <Access kAccess, typename x_t>
class StagedSlice {
  static constexpr int N = kChunkElements<x_t>;
  using Chunk = Vec<x_t, N>;

 public:
  __device__ __forceinline__ StagedSlice(unsigned char* shared, const x_t* slice, int chunks)
      : shared_(shared), slice_(reinterpret_cast<const unsigned char*>(slice)), chunks_(chunks) {
    if constexpr (kAccess == Access::shifted_packs) {
      shift_ = reinterpret_cast<std::uintptr_t>(slice) % kChunkBytes;
    }
  }

  // What the copy moves: whole granules, of which the first and last may be shared with others.
  __device__ __forceinline__ int bytes() const {
    return chunks_ == 0 ? 0 : (chunks_ + (shift_ > 0 ? 1 : 0)) * kChunkBytes;
  }
  __device__ __forceinline__ void start_copy(Barrier& barrier) const {
    if (chunks_ > 0) copy_bulk(shared_, slice_ - shift_, bytes(), barrier);
  }

  __device__ __forceinline__ Chunk get(int chunk) const {
    Chunk value[1];
    load_run<kAccess>(value, reinterpret_cast<const x_t*>(shared_ + shift_) + chunk * N, 1, 1, 0);
    return value[0];
  }
  __device__ __forceinline__ void set(int chunk, const Chunk& value) const {
    static_assert(kAccess == Access::packs);
    reinterpret_cast<Chunk*>(shared_)[chunk] = value;
  }

 private:
  unsigned char* shared_;
  const unsigned char* slice_;
  int chunks_;
  unsigned shift_ = 0;
};

inline int staged_slice_bytes(int slice_chunks) { return (slice_chunks + 1) * kChunkBytes; }

// Chunks of the weight that a thread loads before it knows the sum, and registers for them. With 4
// of 16 bits five blocks of 256 threads share an SM: 95 % of the copy rate at 262144 columns,
// against 90 % with 8 and four blocks. For float32 it is the other way round, 87 % and 97 % at
// 65536 columns. Beside a residual shared memory leaves room for three blocks, which are better off
// with 8.
template <typename x_t, typename w_t, bool kAdd>
constexpr int kStagedAhead = sizeof(x_t) == 2 && (sizeof(w_t) > 2 || !kAdd) ? 4 : 8;
template <typename w_t, bool kAdd>
constexpr int kStagedRegisters = sizeof(w_t) == 2 && !kAdd ? 48 : 64;

template <typename x_t, typename w_t, Access kAccess, bool kAdd>
__global__ void __maxnreg__((kStagedRegisters<w_t, kAdd>))
    rmsnorm_forward_staged_kernel(const ForwardArgs<x_t, w_t> args) {
#if __CUDA_ARCH__ >= 900
  constexpr int N = kChunkElements<x_t>;
  constexpr int kAhead = kStagedAhead<x_t, w_t, kAdd>;
  using chunk_sum_t = typename Arithmetic<x_t>::chunk_sum_t;
  extern __shared__ __align__(128) unsigned char staged_bytes[];
  __shared__ Barrier loaded;
  __shared__ RowSum row_sum;

  // What this block owns: `chunks` chunks of one row, from column `first`.
  const int64_t row = blockIdx.x / args.slices;
  const int slice = static_cast<int>(blockIdx.x % args.slices);
  const int first_chunk = slice * args.slice_chunks;
  const int row_chunks = static_cast<int>(args.H / N);
  const int chunks = max(0, min(row_chunks - first_chunk, args.slice_chunks));
  const int64_t first = static_cast<int64_t>(first_chunk) * N;

  // Load: the slice into shared memory, the first of the weight into registers.
  using Slice = StagedSlice<kAccess, x_t>;
  const Slice x(staged_bytes, args.x + args.x_layout.offset(row) + first, chunks);
  const Slice residual(staged_bytes + (args.slice_chunks + 1) * kChunkBytes,
                       kAdd ? args.residual + args.residual_layout.offset(row) + first : nullptr,
                       kAdd ? chunks : 0);
  if (threadIdx.x == 0) {
    loaded.init(1);
    publish_barriers();
    loaded.arrive_expecting(x.bytes() + residual.bytes());
    x.start_copy(loaded);
    residual.start_copy(loaded);
  }
  row_sum.begin(args.slices);
  __syncthreads();
  const int threads = blockDim.x;
  const int weights = args.weight == nullptr ? 0 : chunks;
  const w_t* from_weight = args.weight + first;
  Vec<w_t, N> weight[kAhead];
  load_run<kAccess>(weight, from_weight + threadIdx.x * N, weights - threadIdx.x, threads, 1);
  loaded.wait(0);

  // Reduce: the sum of squares. What was added stays in x's place where it can.
  const auto sum_of = [&](int chunk) {
    Vec<x_t, N> value = x.get(chunk);
    if constexpr (kAdd) add_chunk(value, residual.get(chunk));
    return value;
  };
  double sum = 0;
#pragma unroll 4
  for (int chunk = threadIdx.x; chunk < chunks; chunk += threads) {
    const Vec<x_t, N> value = sum_of(chunk);
    if constexpr (kAdd) {
      store(args.sum + row * args.H + first + chunk * N, value);
      if constexpr (kAccess == Access::packs) x.set(chunk, value);
    }
    sum += add_squares(chunk_sum_t(0), value);
  }
  sum = row_sum.total(sum, args.slices, slice);

  // Compute and store
  const Normalizer<x_t, w_t> normalizer(args, sum);
  with_output(args, [&](auto* y, auto round_before_weight) {
    using y_t = std::remove_pointer_t<decltype(y)>;
    y += row * args.H + first;
    for (int base = threadIdx.x; base < chunks; base += kAhead * threads) {
#pragma unroll
      for (int v = 0; v < kAhead; ++v) {
        const int chunk = base + v * threads;
        if (chunk < chunks) {
          Vec<x_t, N> value = kAccess == Access::packs ? x.get(chunk) : sum_of(chunk);
          const auto result =
              normalizer.template y<decltype(round_before_weight)::value, y_t>(value, weight[v]);
          const int next = chunk + kAhead * threads;
          if (next < weights) {
            load_run<kAccess>(reinterpret_cast<Vec<w_t, N>(&)[1]>(weight[v]),
                              from_weight + next * N, 1, 1, 1);
          }
          store(y + chunk * N, result);
        }
      }
    }
  });
#endif
}

}  // namespace my_ops
