// What a block of the widest rows has, and its producer. Device only, compute capability 9.0 and
// later, needs no torch.
#pragma once

#include <cstdint>

#include "rmsnorm/backward_args.cuh"
#include "rmsnorm/backward_ring.cuh"

namespace my_ops {

constexpr int kWidestVectors = 16;  // chunks of a thread, at most
constexpr int kWidestFewest = 10;   // and at least
constexpr int kWidestThreads = 256;
constexpr int kWidestSlots = 28;
constexpr int kWidestThreadBytes = kChunkBytes * 2 * kWidestSlots;

// Chunks of a thread that are held in registers: none where setmaxnreg cannot give it enough.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kHeld = 4;
#else
constexpr int kHeld = 0;
#endif

// What is added to grad_x comes in pairs of chunks, see below.
static_assert(kHeld % 2 == 0 && kWidestFewest % 2 == 0 && kWidestVectors % 2 == 0);

// The producer. A row takes a slot for each chunk and then, where there is something to add to
// grad_x, one for every two chunks of it, in the order in which the gradient is computed: chunks in
// the ring first, because slots are reused in order, then those in registers.
template <typename x_t>
__device__ __forceinline__ void fill_widest_ring(const BackwardArgs<x_t>& args, unsigned char* ring,
                                                 RingBarriers<kWidestSlots>& barriers,
                                                 const OwnedColumns& owned, int chunk_columns,
                                                 int vectors, int64_t first_row, int64_t row_step) {
  RingProducer<x_t, kWidestSlots> producer(ring, barriers, chunk_columns, owned.columns);
  for (int64_t row = first_row; row < args.rows; row += row_step) {
    const x_t* grad_row = args.grad + args.grad_layout.offset(row) + owned.first;
    const x_t* x_row = args.x + args.x_layout.offset(row) + owned.first;
    for (int v = 0; v < vectors; ++v) producer.send(grad_row, v, x_row, v);
    if (args.grad_sum == nullptr) continue;
    const x_t* sum_row = args.grad_sum + args.grad_sum_layout.offset(row) + owned.first;
    for (int i = 0; i < vectors; i += 2) {
      const int v = kHeld + i < vectors ? kHeld + i : kHeld + i - vectors;
      producer.send(sum_row, v, sum_row, v + 1);
    }
  }
}

}  // namespace my_ops
