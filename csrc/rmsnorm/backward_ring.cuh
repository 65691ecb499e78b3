// What a backward kernel reads, and the ring in shared memory through which it comes. Device only,
// needs no torch.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "rmsnorm/chunk.cuh"
#include "rmsnorm/row_layout.h"

namespace my_ops {

template <typename x_t, typename w_t>
struct BackwardArgs {
  using acc_t = typename Arithmetic<x_t>::acc_t;
  const x_t* grad;        // [rows, H], rows at grad_layout
  const x_t* grad_sum;    // [rows, H], rows at grad_sum_layout, added to grad_x; null: none
  const x_t* x;           // [rows, H], rows at x_layout
  const w_t* weight;      // [H]; null: ones
  x_t* grad_x;            // [rows, H] dense; null: not wanted
  acc_t* partial_weight;  // [parts, H]; null: not wanted
  double* partial_sums;   // [rows, slices, 2], for Phase::sums and Phase::apply only
  RowLayout grad_layout;
  RowLayout grad_sum_layout;
  RowLayout x_layout;
  int64_t rows;
  int64_t H;
  double inverse_H;
  double eps;
  double weight_offset;
  int slices;        // blocks that share a row
  int slice_chunks;  // chunks of a row in each of them
};

// Chunks of grad and of x that a thread has in the ring: with 512 threads 208 KB, as much as an SM
// has. A row takes 4 (16-bit types) or 8.
constexpr int kRingSlots = 13;
constexpr int kRingBytesPerThread = kRingSlots * 2 * kChunkBytes;

// At 32 columns a thread (16 of float64) the weight, its gradient and one chunk in work fit the 128
// registers that 512 threads on an SM leave for each.
constexpr int kBackwardMaxThreads = 512;
template <typename x_t>
constexpr int kBackwardVectors = sizeof(x_t) == 2 ? 4 : 8;

// The chunks that a thread owns: `count` of them, `stride` apart from `first`, in every
// `row_step`-th row from `first_row`.
struct OwnedChunks {
  int64_t first_row;
  int64_t row_step;
  int64_t first;
  int stride;
  int count;
};

// Each thread copies the chunks that it will use itself, so the ring needs no barrier.
template <typename x_t, bool kAligned>
class ChunkRing {
  static constexpr int N = kChunkElements<x_t>;
  using Chunk = Vec<x_t, N>;

 public:
  template <typename Args>
  __device__ __forceinline__ ChunkRing(const Args& args, const OwnedChunks& owned)
      : grad_(args.grad),
        x_(args.x),
        grad_layout_(args.grad_layout),
        x_layout_(args.x_layout),
        rows_(args.rows),
        H_(args.H),
        owned_(owned),
        row_(owned.first_row - owned.row_step) {}

  // Sends chunk v of the row ahead on its way into a slot; v = 0 begins the next row. Every call
  // closes one group of copies, empty or not, so that "all but the last n groups" always means the
  // same chunks.
  __device__ __forceinline__ void fill(int slot, int v) {
    if (v == 0) {
      row_ += owned_.row_step;
      grad_row_ = grad_ + grad_layout_.offset(row_);
      x_row_ = x_ + x_layout_.offset(row_);
    }
    if (row_ < rows_ && v < owned_.count) {
      const int64_t column = (owned_.first + v * owned_.stride) * N;
      if constexpr (kAligned) {
        __pipeline_memcpy_async(&grad(slot), grad_row_ + column, kChunkBytes);
        __pipeline_memcpy_async(&x(slot), x_row_ + column, kChunkBytes);
      } else {
        grad(slot) = load_chunk<false, N>(grad_row_, column, H_);
        x(slot) = load_chunk<false, N>(x_row_, column, H_);
      }
    }
    __pipeline_commit();
  }

  __device__ __forceinline__ Chunk& grad(int slot) const {
    return reinterpret_cast<Chunk*>(bytes())[slot * 2 * blockDim.x + threadIdx.x];
  }
  __device__ __forceinline__ Chunk& x(int slot) const { return (&grad(slot))[blockDim.x]; }
  __device__ __forceinline__ static unsigned char* bytes() {
    extern __shared__ __align__(16) unsigned char ring_bytes[];
    return ring_bytes;
  }

 private:
  const x_t* grad_;
  const x_t* x_;
  const RowLayout& grad_layout_;
  const RowLayout& x_layout_;
  int64_t rows_;
  int64_t H_;
  const OwnedChunks& owned_;
  int64_t row_;  // the row ahead
  const x_t* grad_row_ = nullptr;
  const x_t* x_row_ = nullptr;
};

}  // namespace my_ops
