// Who owns a row in a backward, as a function of its width. Host side of .cu files, needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rmsnorm/backward_kernel.cuh"
#include "rmsnorm/backward_wide_kernel.cuh"
#include "rmsnorm/device_limits.h"

namespace my_ops {

// Whether rows of H columns are ragged. float64, which gradcheck needs and nobody runs fast,
// always is: two thirds of its kernels need not be compiled.
template <typename x_t>
constexpr bool kOnlyRagged = sizeof(x_t) > 4;
template <typename x_t>
bool ragged(int64_t H) {
  return kOnlyRagged<x_t> || H % kChunkElements<x_t> != 0;
}

struct BackwardConfig {
  int lanes;    // lanes that share a row; 0: whole blocks
  int vectors;  // chunks of a thread
  int threads;  // of a block, that compute
  int slices;   // blocks that share a row
  bool wide;    // backward_wide_kernel.cuh
  bool whole;   // false: two launches, for rows wider than any cluster takes
};

// A function of the width and the device only, never of the number of rows, so that a row's grad_x
// has the same bits in every batch. A chunk is 16 bytes of x.
//
//   chunks        bfloat16    float32     who owns a row
//   <= 16         <= 128      <= 64       8 lanes, 2 chunks each
//   <= 32         <= 256      <= 128      8 lanes, 4 chunks each
//   <= 64         <= 512      <= 256      a warp, 2 chunks a lane
//   <= 128        <= 1024     <= 512      a warp, 4 chunks a lane
//   <= 1024       <= 8192     <= 4096     a block of 64 to 256 threads, 4 chunks a thread
//   <= 2048 * 16  <= 262144   <= 131072   1 to 16 blocks of up to 512 threads with a ring
//   <= 4096 * 16              <= 262144   as many, 8 chunks a thread
//   more                                  slices of 1024 chunks, two launches
//
// Small blocks for narrow rows, because their loads, sums and stores overlap with those of the
// blocks beside them; the ring for wide ones, whose blocks fill a multiprocessor each.
//
// Ragged rows, which compute more: 4, 8, 16 or 32 lanes with 4 chunks each, the first that hold a
// row (111 columns of bfloat16 take 12 % longer with 8 lanes and 2 chunks). The ring does not take
// them: a block has up to 512 threads if there are registers for them, and slices follow.
template <typename x_t>
BackwardConfig backward_config(int64_t H, const DeviceLimits& limits) {
  constexpr int64_t N = kChunkElements<x_t>;
  const int64_t chunks = (H + N - 1) / N;
  const auto threads_for = [](int64_t chunks, int vectors, int multiple) {
    const int64_t threads = (chunks + vectors - 1) / vectors;
    return static_cast<int>((threads + multiple - 1) / multiple * multiple);
  };
  if (ragged<x_t>(H)) {
    for (int lanes : {4, 8, 16, 32}) {
      if (chunks <= lanes * 4) return {lanes, 4, kBackwardLaneThreads, 1, false, true};
    }
  }
  if (chunks <= 32) return {8, chunks <= 16 ? 2 : 4, kBackwardLaneThreads, 1, false, true};
  if (chunks <= 128) return {32, chunks <= 64 ? 2 : 4, kBackwardLaneThreads, 1, false, true};
  constexpr int kVectors = kBackwardVectors;
  constexpr int kThreads = 256;
  const int max_threads = ragged<x_t>(H) && sizeof(x_t) > 2 ? 2 * kThreads : kThreads;
  if (chunks <= max_threads * kVectors) {
    return {0, kVectors, threads_for(chunks, kVectors, 32), 1, false, true};
  }
  constexpr int kStaticSharedBytes = 3 * 1024;
  for (int vectors : {kWideVectors, 2 * kWideVectors}) {
    // Eight chunks of 16-bit x would be 64 columns a thread: more than there are registers for.
    const bool fits = vectors == kWideVectors || sizeof(x_t) > 2;
    if (ragged<x_t>(H) || !fits || limits.max_cluster_blocks == 1) break;
    const int fitting = (limits.shared_bytes_per_block - kStaticSharedBytes) /
                        wide_shared_bytes_per_thread(vectors) / 128 * 128;
    const int64_t block_chunks = static_cast<int64_t>(std::min(kWideThreads, fitting)) * vectors;
    int slices = 1;
    while (slices < limits.max_cluster_blocks && slices * block_chunks < chunks) slices *= 2;
    if (slices * block_chunks >= chunks) {
      const int64_t slice_chunks = (chunks + slices - 1) / slices;
      return {0, vectors, threads_for(slice_chunks, vectors, 128), slices, true, true};
    }
  }
  constexpr int64_t kSliceChunks = kThreads * kVectors;
  const int64_t slices = (chunks + kSliceChunks - 1) / kSliceChunks;
  return {0, kVectors, kThreads, static_cast<int>(slices), false, false};
}

}  // namespace my_ops
