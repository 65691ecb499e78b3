// Who owns a row in a backward, as a function of its width. Host side of .cu files, needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.h"
#include "rmsnorm/backward_kernel.cuh"
#include "rmsnorm/backward_wide_kernel.cuh"
#include "rmsnorm/backward_widest_kernel.cuh"
#include "rmsnorm/device_limits.h"

namespace my_ops {

// Whether rows of H columns are ragged. Those of float64 always are: gradcheck needs them, nobody
// needs them fast, and two thirds of the kernels need not be compiled.
template <typename x_t>
constexpr bool kOnlyRagged = sizeof(x_t) > 4;
template <typename x_t>
bool ragged(int64_t H) {
  return kOnlyRagged<x_t> || H % kChunkElements<x_t> != 0;
}

// Whether the rows of all tensors begin and end at the same places within packs, as those of
// contiguous tensors do.
template <typename x_t>
bool rows_in_step(const BackwardArgs<x_t>& args) {
  constexpr int64_t N = kChunkElements<x_t>;
  const auto in_step = [&](const x_t* data, const RowLayout& layout) {
    if (data == nullptr) return true;
    const int64_t gap = layout.strides[0] - args.H;
    return reinterpret_cast<std::uintptr_t>(data) % kChunkBytes == 0 && layout.dims == 1 &&
           (args.rows == 1 || (gap >= 0 && gap % N == 0));
  };
  return in_step(args.grad, args.grad_layout) && in_step(args.x, args.x_layout) &&
         in_step(args.grad_sum, args.grad_sum_layout);
}

// `aligned`: all tensors, the weight too, begin with a whole pack and have rows of such.
template <typename x_t>
Rows rows_lie(const BackwardArgs<x_t>& args, bool aligned) {
  if (kOnlyRagged<x_t>) return Rows::ragged;
  if (ragged<x_t>(args.H)) return rows_in_step(args) ? Rows::in_step : Rows::ragged;
  if (!aligned) return Rows::shifted;
  const bool even =
      args.grad_layout.dims == 1 && args.x_layout.dims == 1 && args.grad_sum_layout.dims == 1;
  return even ? Rows::even : Rows::aligned;
}

// Shared memory of a thread, for the ring of either kernel of wide rows.
constexpr int wide_thread_bytes(int vectors) {
  return vectors == kWidestVectors ? kWidestThreadBytes : kWideThreadBytes;
}

struct BackwardConfig {
  int lanes;    // lanes that share a row; 0: whole blocks
  int vectors;  // chunks of a thread
  int threads;  // of a block, that compute
  int slices;   // blocks that share a row
  bool wide;    // backward_wide_kernel.cuh
  bool whole;   // false: two launches, for rows wider than any cluster takes
};

// How many chunks the threads of a wide kernel have: a row takes no more slots of the ring, and no
// more instructions, which are what bounds rows that are narrow for their blocks. Even for the
// widest, where what is added to grad_x comes in pairs.
//
// An argument, because a kernel that works it out has a register less, and the widest has none to
// spare: with something to add it reached 89 % of the copy rate instead of 100 %. There is a
// least number, as blocks are no wider than their rows need: with it only the last chunks need a
// branch; one for each chunk costs 4 %.
inline int wide_vectors(const BackwardConfig& config, int slice_chunks) {
  const int chunks = ceil_div(slice_chunks, config.threads);
  if (config.vectors == kWidestVectors) return std::max(kWidestFewest, ceil_div(chunks, 2) * 2);
  return std::max(kWideFewest, chunks);
}

// Who owns a ragged row: 4, 8, 16 or 32 lanes with 4 chunks each, the first that hold it wherever
// in a pack it begins (111 columns of bfloat16 take 12 % longer with 8 lanes and 2 chunks). Wider
// ones a block, or slices: the ring does not take them. A warp has up to 127 chunks of columns,
// because they may begin within one and then end in the 128th; a block up to 8 warps (16 where
// columns are twice as many bytes, before it takes two launches).
//
// With more than 8 warps only one block runs on an SM, and nothing overlaps with its barriers: 64 %
// of the copy rate at 4099 columns of float32. So rows for which 8 warps with 5 or 6 chunks a
// thread are enough have those: 95 %, and at 5125 columns, where some registers spill, 82 % instead
// of 74.
template <typename x_t>
BackwardConfig ragged_config(int64_t H) {
  constexpr int64_t N = kChunkElements<x_t>;
  constexpr int kVectors = kBackwardVectors;
  for (int lanes : {4, 8, 16, kWarpSize}) {
    if (ceil_div(H + N - 1, N) <= lanes * kVectors) {
      return {lanes, kVectors, kBackwardLaneThreads, 1, false, true};
    }
  }
  constexpr int kPairedWarps = 8;  // of two blocks on a multiprocessor
  const auto warps_with = [&](int vectors) {
    return ceil_div(ceil_div(H, N), kWarpSize * vectors - 1);
  };
  const int64_t warps = warps_with(kVectors);
  if (sizeof(x_t) == 4 && warps > kPairedWarps) {
    for (int vectors : {5, 6}) {
      if (warps_with(vectors) <= kPairedWarps) {
        return {0, vectors, kPairedWarps * kWarpSize, 1, false, true};
      }
    }
  }
  const int max_warps = sizeof(x_t) > 2 ? 16 : 8;
  if (warps <= max_warps) {
    return {0, kVectors, static_cast<int>(warps) * kWarpSize, 1, false, true};
  }
  const int slices = static_cast<int>(ceil_div(warps, kPairedWarps));
  return {0, kVectors, kPairedWarps * kWarpSize, slices, false, false};
}

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
//   <= 4096 * 16              <= 262144   as many of up to 256 threads, 16 chunks a thread
//   more                                  slices of 1024 chunks, two launches
//
// Small blocks for narrow rows, because their loads, sums and stores overlap with those of the
// blocks beside them; the ring for wide ones, whose blocks fill a multiprocessor each.
//
// Ragged rows, which compute more, have a table of their own (ragged_config).
template <typename x_t>
BackwardConfig backward_config(int64_t H, const DeviceLimits& limits) {
  constexpr int64_t N = kChunkElements<x_t>;
  if (ragged<x_t>(H)) return ragged_config<x_t>(H);
  const int64_t chunks = H / N;
  const auto threads_for = [](int64_t chunks, int vectors, int multiple) {
    return static_cast<int>(ceil_div(ceil_div(chunks, vectors), multiple) * multiple);
  };
  if (chunks <= 32) return {8, chunks <= 16 ? 2 : 4, kBackwardLaneThreads, 1, false, true};
  if (chunks <= 128) return {32, chunks <= 64 ? 2 : 4, kBackwardLaneThreads, 1, false, true};
  constexpr int kVectors = kBackwardVectors;
  constexpr int kThreads = 256;
  if (chunks <= kThreads * kVectors) {
    return {0, kVectors, threads_for(chunks, kVectors, 32), 1, false, true};
  }
  constexpr int kStaticSharedBytes = 3 * 1024;
  for (int vectors : {kWideVectors, kWidestVectors}) {
    const bool widest = vectors == kWidestVectors;
    // Sixteen chunks of 16-bit x would be more than there are registers for.
    if ((widest && sizeof(x_t) == 2) || limits.max_cluster_blocks == 1) break;
    const int fitting = (limits.shared_bytes_per_block - kStaticSharedBytes) /
                        wide_thread_bytes(vectors) / 128 * 128;
    const int max_threads = std::min(widest ? kWidestThreads : kWideThreads, fitting);
    const int64_t block_chunks = static_cast<int64_t>(max_threads) * vectors;
    int slices = 1;
    while (slices < limits.max_cluster_blocks && slices * block_chunks < chunks) slices *= 2;
    if (slices * block_chunks >= chunks) {
      const int threads = threads_for(ceil_div(chunks, slices), vectors, 128);
      return {0, vectors, threads, slices, true, true};
    }
  }
  constexpr int64_t kSliceChunks = kThreads * kVectors;
  const int slices = static_cast<int>(ceil_div(chunks, kSliceChunks));
  return {0, kVectors, kThreads, slices, false, false};
}

}  // namespace my_ops
