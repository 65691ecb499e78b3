// How a forward is launched, as a function of its width. Host side of .cu files, needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rmsnorm/device_limits.h"
#include "rmsnorm/forward_kernel.cuh"
#include "rmsnorm/forward_tiles_ring.cuh"

namespace my_ops {

enum class ForwardKind {
  registers,     // x waits in registers: forward_kernel.cuh
  staged,        // x waits in shared memory: forward_staged_kernel.cuh
  tiles,         // all multiprocessors share rows: forward_tiles_kernel.cuh
  two_launches,  // x is read twice
};

struct ForwardConfig {
  ForwardKind kind;
  int lanes;              // lanes that share a row; 0: whole blocks
  int vectors;            // chunks that a thread holds; 0: however many there are
  int threads;            // of a block
  int slices;             // blocks that share a row
  bool overlaps = false;  // may begin while the kernel in front of it ends
  int blocks = 0;         // that run at the same time, where all share rows
};

inline ForwardConfig forward_block_config(int64_t chunks, int vectors, int max_cluster_blocks) {
  const int64_t block_chunks = kForwardMaxThreads * vectors;
  int slices = 1;
  while (slices < max_cluster_blocks && slices * block_chunks < chunks) slices *= 2;
  if (slices * block_chunks < chunks) {
    const int64_t many = (chunks + block_chunks - 1) / block_chunks;
    return {ForwardKind::two_launches, 0, vectors, kForwardMaxThreads, static_cast<int>(many)};
  }
  const int64_t slice_chunks = (chunks + slices - 1) / slices;
  const int64_t warps = (slice_chunks + kWarpSize * vectors - 1) / (kWarpSize * vectors);
  return {ForwardKind::registers, 0, vectors, static_cast<int>(warps) * kWarpSize, slices};
}

// Packs of a row; 0: it is taken by elements. Rows of float64 always are: gradcheck needs them,
// nobody needs them fast, and two thirds of the kernels need not be compiled.
template <typename x_t>
int64_t row_packs(int64_t H) {
  constexpr int N = kChunkElements<x_t>;
  return sizeof(x_t) > 4 || H % N != 0 ? 0 : H / N;
}

// Whether the blocks of all multiprocessors hold two rows of tiles, also where there is something
// to add. With room for one the kernel would end, but not keep the memory busy.
inline bool rows_fit_in_tiles(int64_t packs, const DeviceLimits& limits) {
  using Plain = TileShape<Access::shifted_packs, false>;
  using Adding = TileShape<Access::shifted_packs, true>;
  constexpr int kBlockPacks =
      std::min(Plain::kSlots * Plain::kChunks, Adding::kSlots * Adding::kChunks);
  constexpr int kBlockBytes = std::max(Plain::kSharedBytes, Adding::kSharedBytes);
  return limits.max_cluster_blocks == kMaxClusterBlocks &&
         limits.shared_bytes_per_block >= kBlockBytes + 1024 &&
         2 * packs <= static_cast<int64_t>(limits.multiprocessors) * kBlockPacks;
}

// A function of the width and the device only, never of the number of rows: a row must have the
// same bits in every batch.
//
//   row bytes, in packs   who owns a row
//   <= 128                8 lanes, 1 pack each
//   <= 512                8 lanes, 4 packs each: four rows a warp, 64 bytes in flight a lane
//   <= 2 K                a warp, 4 packs a lane
//   <= 16 K               a block of 64 to 256 threads, 4 packs a thread
//   <= 32 K               a block of up to 256 threads, 8 packs a thread
//   <= 512 K              2, 4, 8 or 16 blocks of 256 threads in a cluster, staged
//   <= 6.2 M              a block on each multiprocessor of an H200, in tiles: 95 to 96 % of the
//                         copy rate at 262144 columns of float32, 93 at 1048576, where a cluster of
//                         blocks of 512 threads came to 88 and two launches to 57. (1 to 4 rows
//                         take 1.6 to 2.6 us longer, as sums in memory are cleared before.)
//   more                  slices of 64 K, two launches. Where clusters or shared memory are less,
//                         blocks of 512 threads, staged, as long as two fit on a multiprocessor
//
//   columns, one by one   who owns a row
//   <= 128                16 lanes, 8 columns each; 8 lanes read four rows at a time, 30 % slower
//   <= 256, <= 1024       a warp, 8 or 32 columns a lane
//   <= 12288              a block of up to 512 threads, 24 columns a thread
//   <= 12288 * 16         2, 4, 8 or 16 such blocks in a cluster
//   more                  slices of 12288, two launches
inline ForwardConfig forward_config(int64_t H, int64_t packs, const DeviceLimits& limits) {
  constexpr auto registers = ForwardKind::registers;
  if (packs == 0) {
    if (H <= 16 * 8) return {registers, 16, 8, 128, 1};
    if (H <= 32 * 8) return {registers, 32, 8, 128, 1};
    if (H <= 32 * 32) return {registers, 32, 32, 128, 1};
    return forward_block_config(H, 24, limits.max_cluster_blocks);
  }
  if (packs <= 8) return {registers, 8, 1, 256, 1};
  if (packs <= 32) return {registers, 8, 4, 256, 1};
  if (packs <= 128) return {registers, 32, 4, 128, 1};
  if (packs <= 1024) return forward_block_config(packs, 4, 1);
  if (packs <= 2048 || limits.max_cluster_blocks == 1) return forward_block_config(packs, 8, 1);
  if (packs > 32768 && rows_fit_in_tiles(packs, limits)) {
    return {ForwardKind::tiles, 0, 0, 0, 0, false, limits.multiprocessors};
  }

  // Two blocks have to fit on an SM, with what is static.
  constexpr int64_t kWantedPacks = 2048;
  const int64_t max_packs = (limits.shared_bytes_per_block - 4096) / (2 * kChunkBytes) - 1;
  int slices = 2;
  while (slices < limits.max_cluster_blocks && slices * kWantedPacks < packs) slices *= 2;
  if (slices * max_packs < packs) return forward_block_config(packs, 8, 1);
  return {ForwardKind::staged, 0, 0, slices * kWantedPacks < packs ? 512 : 256, slices};
}

// Up to so many blocks of one row each start, and prefetch, while the kernel in front still stores:
// two on each multiprocessor of an H200. With that, 256 rows of 4096 take 2.31 us instead of 2.56,
// of 8192 3.42 instead of 3.67; but 512 rows of 4096 would take 3.79 instead of 3.39.
constexpr int64_t kFewBlocks = 264;

// How many rows follow one another in the same lanes (kRowsInTurn): more than one only where there
// are enough for all lanes.
template <typename x_t>
int rows_in_turn(const ForwardConfig& config, int64_t rows) {
  return takes_rows_in_turn<x_t>(config.lanes, config.vectors) && rows >= 1 << 16 ? 4 : 1;
}

}  // namespace my_ops
