// C = A B on the CUDA cores, in the operands' own precision. Torch-free; included by
// matmul_cuda.cu.
//
// A block owns a kRows x kCols tile of C (and, under split-K, one slice of K). It walks K in steps
// of kDepth: cp.async brings the next tiles of A and B into a ring of kStages shared buffers while
// each thread multiplies a kThreadRows x kThreadCols patch out of registers, which are themselves
// double buffered so that the shared loads of step k + 1 hide behind the FMAs of step k.
// Shared tiles are K-outer ([k][row]), so an operand whose memory runs along K is transposed on its
// way in. That makes one kernel of NN, NT, TN and TT: only the copies know the layout.
#pragma once

#include <cstdint>

#include "common/vec.cuh"

namespace my_ops {
namespace simt {

// One operand as the kernel sees it: `rows` is M for A and N for B, the other dimension is K.
// One of the two strides is 1 (template); the other, in bytes, fits 32 bits so that an address
// costs a single wide multiply-add.
template <typename scalar_t>
struct Operand {
  const scalar_t* data;
  uint32_t stride_bytes;
};

// How an operand travels to shared memory.
enum class Copy {
  kAlongK,        // memory runs along K: single elements, transposed on the way
  kAlongRows,     // memory runs along M or N, not 16-byte aligned: single elements
  kVectorsOfRows  // memory runs along M or N in aligned 16-byte vectors
};

template <typename scalar_t_, int kRows_, int kCols_, int kDepth_, int kThreadRows_,
          int kThreadCols_, int kStages_, int kBlocksPerSM_, int kCopyGroups_ = 2>
struct Tile {
  using scalar_t = scalar_t_;
  static constexpr int kRows = kRows_, kCols = kCols_, kDepth = kDepth_;
  static constexpr int kThreadRows = kThreadRows_, kThreadCols = kThreadCols_;
  static constexpr int kStages = kStages_, kBlocksPerSM = kBlocksPerSM_;
  static constexpr int kCopyGroups = kCopyGroups_;
  // A 16-byte vector, the unit of every shared load and of the output's strips.
  static constexpr int kVector = 16 / sizeof(scalar_t);
  // A warp is 4 x 8 threads.
  static constexpr int kWarpRows = 4 * kThreadRows, kWarpCols = 8 * kThreadCols;
  static constexpr int kThreads = 32 * (kRows / kWarpRows) * (kCols / kWarpCols);
  // The pad turns the transposing stores (8 k x 4 rows a warp) into 32 different banks and keeps
  // every shared row 16-byte aligned.
  static constexpr int kPitchA = kRows + kVector, kPitchB = kCols + kVector;
  static constexpr int kStageElements = kDepth * (kPitchA + kPitchB);
  static constexpr int kSharedBytes = kStages * kStageElements * sizeof(scalar_t);
  static_assert(kRows % kWarpRows == 0 && kCols % kWarpCols == 0, "whole warps");
  static_assert(kDepth % 8 == 0, "the transposing copy moves 8 k at a time");
};

template <int kBytes>
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global),
                 "n"(kBytes));
  }
}

// As above, but writes zeros and reads nothing where `inside` is false.
template <int kBytes>
__device__ __forceinline__ void copy_async_or_zero(uint32_t shared, const void* global,
                                                   bool inside) {
  const uint32_t source_bytes = inside ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(source_bytes));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(source_bytes));
  }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A thread's part in copying one kTileRows x kDepth tile. Rows past the operand's end are clamped
// to its last row: what they bring only reaches outputs that are never stored.
template <typename scalar_t, int kTileRows, int kDepth, int kPitch, int kThreads, Copy kCopy>
class TileCopier {
  static constexpr bool kTransposes = kCopy == Copy::kAlongK;
  static constexpr int kWidth = kCopy == Copy::kVectorsOfRows ? 16 / sizeof(scalar_t) : 1;
  static constexpr int kBytes = kWidth * sizeof(scalar_t);
  // One pass of the block covers kPassRows x kPassDepth elements.
  static constexpr int kVectorsPerRow = kTileRows / kWidth;
  static constexpr int kLanesAlongRows =
      kTransposes ? kThreads / 8 : (kVectorsPerRow < kThreads ? kVectorsPerRow : kThreads);
  static constexpr int kPassRows = kLanesAlongRows * kWidth;
  static constexpr int kPassDepth = kThreads / kLanesAlongRows;
  static constexpr int kRowPasses = kTileRows / kPassRows, kDepthPasses = kDepth / kPassDepth;
  static_assert(kTileRows % kPassRows == 0 && kDepth % kPassDepth == 0, "whole passes");

 public:
  static constexpr int kCopies = kRowPasses * kDepthPasses;

  __device__ __forceinline__ TileCopier(const Operand<scalar_t>& operand, int64_t first_row,
                                        int64_t rows, int64_t first_k) {
    const int thread = static_cast<int>(threadIdx.x);
    const int lane_row = (kTransposes ? thread / 8 : thread % kLanesAlongRows) * kWidth;
    lane_k_ = kTransposes ? thread % 8 : thread / kLanesAlongRows;
    stride_bytes_ = operand.stride_bytes;
    shared_offset_ = (lane_k_ * kPitch + lane_row) * static_cast<int>(sizeof(scalar_t));
    // `rows` is a multiple of kWidth, so the last whole vector is a valid place to clamp to.
    const int64_t last = rows - kWidth - first_row;
#pragma unroll
    for (int pass = 0; pass < kRowPasses; ++pass) {
      const int row = lane_row + pass * kPassRows;
      row_[pass] = static_cast<uint32_t>(row < last ? row : last);
    }
    const int64_t k = first_k + lane_k_;
    source_ = reinterpret_cast<const char*>(operand.data);
    source_ += kTransposes ? first_row * stride_bytes_ + k * static_cast<int64_t>(sizeof(scalar_t))
                           : first_row * static_cast<int64_t>(sizeof(scalar_t)) + k * stride_bytes_;
  }

  // Moves on by `depth` of K.
  __device__ __forceinline__ void advance(int depth) {
    source_ += static_cast<int64_t>(depth) * (kTransposes ? sizeof(scalar_t) : stride_bytes_);
  }

  // Issues the i-th of this thread's copies into the tile at shared address `tile`.
  __device__ __forceinline__ void copy(int i, uint32_t tile) const {
    copy_async<kBytes>(destination(i, tile), source(i));
  }

  // The same for a tile with only `depth` valid k: the rest becomes zeros.
  __device__ __forceinline__ void copy_partial(int i, uint32_t tile, int depth) const {
    const bool inside = lane_k_ + depth_pass(i) * kPassDepth < depth;
    copy_async_or_zero<kBytes>(destination(i, tile), source(i), inside);
  }

 private:
  static __device__ __forceinline__ constexpr int depth_pass(int i) { return i % kDepthPasses; }
  static __device__ __forceinline__ constexpr int row_pass(int i) { return i / kDepthPasses; }

  __device__ __forceinline__ const char* source(int i) const {
    const uint32_t row = row_[row_pass(i)], k = depth_pass(i) * kPassDepth;
    const uint32_t size = sizeof(scalar_t);
    return source_ + (kTransposes ? static_cast<uint64_t>(row) * stride_bytes_ + k * size
                                  : static_cast<uint64_t>(k) * stride_bytes_ + row * size);
  }

  __device__ __forceinline__ uint32_t destination(int i, uint32_t tile) const {
    return tile + shared_offset_ +
           (depth_pass(i) * kPassDepth * kPitch + row_pass(i) * kPassRows) *
               static_cast<int>(sizeof(scalar_t));
  }

  const char* source_;
  uint32_t stride_bytes_;
  uint32_t row_[kRowPasses];
  int lane_k_;
  int shared_offset_;
};

// Blocks walk C in bands of kBand tile rows, column by column inside a band, so that the blocks
// running together share the tiles of A and B they read from L2.
__device__ __forceinline__ void tile_of_block(int64_t block, int64_t tile_rows, int64_t tile_cols,
                                              int64_t& tile_row, int64_t& tile_col) {
  constexpr int64_t kBand = 8;
  const int64_t band = block / (kBand * tile_cols);
  const int64_t left = tile_rows - band * kBand;
  const int64_t height = left < kBand ? left : kBand;
  const int64_t within = block - band * kBand * tile_cols;
  tile_row = band * kBand + within % height;
  tile_col = within / height;
}

template <class Tile, Copy kCopyA, Copy kCopyB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSM)
    matmul_simt_kernel(const Operand<typename Tile::scalar_t> A,  // [M, K]
                       const Operand<typename Tile::scalar_t> B,  // [K, N]
                       typename Tile::scalar_t* __restrict__ C,   // [splits, M, N]
                       int64_t M, int64_t N, int64_t K) {
  using scalar_t = typename Tile::scalar_t;
  using Strip = Vec<scalar_t, Tile::kVector>;
  constexpr int kDepth = Tile::kDepth, kStages = Tile::kStages, kVector = Tile::kVector;
  constexpr int kThreadRows = Tile::kThreadRows, kThreadCols = Tile::kThreadCols;
  extern __shared__ __align__(16) char shared_memory[];
  const scalar_t* const shared = reinterpret_cast<const scalar_t*>(shared_memory);
  const uint32_t shared_address = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory));

  // What this block owns: a tile of C, and the K tiles [first_tile, first_tile + tiles). The one
  // K tile that may be partial is number 0, so that the loop below needs no bounds.
  int64_t tile_row, tile_col;
  tile_of_block(blockIdx.x, (M + Tile::kRows - 1) / Tile::kRows,
                (N + Tile::kCols - 1) / Tile::kCols, tile_row, tile_col);
  const int64_t first_row = tile_row * Tile::kRows, first_col = tile_col * Tile::kCols;
  const int64_t k_tiles = (K + kDepth - 1) / kDepth;
  const int64_t first_tile = k_tiles * blockIdx.y / gridDim.y;
  const int tiles = static_cast<int>(k_tiles * (blockIdx.y + 1) / gridDim.y - first_tile);
  const int partial_depth = static_cast<int>(K - (k_tiles - 1) * kDepth);
  const int64_t first_k = first_tile == 0 ? 0 : partial_depth + (first_tile - 1) * kDepth;
  const int first_depth = first_tile == 0 ? partial_depth : kDepth;

  using CopierA = TileCopier<scalar_t, Tile::kRows, kDepth, Tile::kPitchA, Tile::kThreads, kCopyA>;
  using CopierB = TileCopier<scalar_t, Tile::kCols, kDepth, Tile::kPitchB, Tile::kThreads, kCopyB>;
  CopierA copy_a(A, first_row, M, first_k);
  CopierB copy_b(B, first_col, N, first_k);
  constexpr int kStageBytes = Tile::kStageElements * sizeof(scalar_t);
  constexpr int kOffsetB = kDepth * Tile::kPitchA;
  constexpr int kOffsetBytesB = kOffsetB * sizeof(scalar_t);

  // Fill all stages but one.
#pragma unroll
  for (int i = 0; i < CopierA::kCopies; ++i) copy_a.copy_partial(i, shared_address, first_depth);
#pragma unroll
  for (int i = 0; i < CopierB::kCopies; ++i) {
    copy_b.copy_partial(i, shared_address + kOffsetBytesB, first_depth);
  }
  commit_copies();
  int to_fetch = tiles - 1;
  if (to_fetch > 0) {
    copy_a.advance(first_depth);
    copy_b.advance(first_depth);
  }
#pragma unroll
  for (int stage = 1; stage < kStages - 1; ++stage) {
    if (to_fetch > 0) {
      const uint32_t address = shared_address + stage * kStageBytes;
#pragma unroll
      for (int i = 0; i < CopierA::kCopies; ++i) copy_a.copy(i, address);
#pragma unroll
      for (int i = 0; i < CopierB::kCopies; ++i) copy_b.copy(i, address + kOffsetBytesB);
      if (--to_fetch > 0) {
        copy_a.advance(kDepth);
        copy_b.advance(kDepth);
      }
    }
    commit_copies();
  }

  // Where this thread's patch lies. Lanes are numbered in a Z so that the 16-byte shared loads of
  // a quarter warp fall on few different addresses.
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kWarpsAlongCols = Tile::kCols / Tile::kWarpCols;
  const int patch_row =
      warp / kWarpsAlongCols * Tile::kWarpRows + (lane / 16 * 2 + lane % 2) * kVector;
  const int patch_col = warp % kWarpsAlongCols * Tile::kWarpCols + lane % 16 / 2 * kVector;

  scalar_t sum[kThreadRows][kThreadCols] = {};
  alignas(16) scalar_t a[2][kThreadRows], b[2][kThreadCols];
  auto load_fragments = [&](int stage, int k, int buffer) {
    const scalar_t* const tile = shared + stage * Tile::kStageElements;
#pragma unroll
    for (int i = 0; i < kThreadRows; i += kVector) {
      *reinterpret_cast<Strip*>(&a[buffer][i]) =
          *reinterpret_cast<const Strip*>(tile + k * Tile::kPitchA + patch_row + i * 4);
    }
#pragma unroll
    for (int j = 0; j < kThreadCols; j += kVector) {
      *reinterpret_cast<Strip*>(&b[buffer][j]) =
          *reinterpret_cast<const Strip*>(tile + kOffsetB + k * Tile::kPitchB + patch_col + j * 8);
    }
  };

  wait_for_copies<kStages - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);
  int read_stage = 0, write_stage = kStages - 1;

#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const uint32_t address = shared_address + write_stage * kStageBytes;
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      if (k == kDepth - 1) {
        commit_copies();
        wait_for_copies<kStages - 2>();
        __syncthreads();
        write_stage = read_stage;
        read_stage = read_stage + 1 == kStages ? 0 : read_stage + 1;
        if (--to_fetch > 0) {
          copy_a.advance(kDepth);
          copy_b.advance(kDepth);
        }
      }
      load_fragments(read_stage, (k + 1) % kDepth, (k + 1) % 2);
      // The copies of a tile are issued in a few groups: one burst would stall the shared loads,
      // and ptxas puts three dummy loads before every group.
      constexpr int kGroupSteps = kDepth / Tile::kCopyGroups;
      if (k % kGroupSteps == 0 && to_fetch > 0) {
        const int group = k / kGroupSteps;
#pragma unroll
        for (int i = 0; i < CopierA::kCopies; ++i) {
          if (i * Tile::kCopyGroups / CopierA::kCopies == group) copy_a.copy(i, address);
        }
#pragma unroll
        for (int i = 0; i < CopierB::kCopies; ++i) {
          if (i * Tile::kCopyGroups / CopierB::kCopies == group) {
            copy_b.copy(i, address + kOffsetBytesB);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
        for (int j = 0; j < kThreadCols; ++j) sum[i][j] += a[k % 2][i] * b[k % 2][j];
      }
    }
  }
  wait_for_copies<0>();

  // Store. N a multiple of the vector keeps every row of C aligned.
  const bool vectors = N % kVector == 0;
  C += static_cast<int64_t>(blockIdx.y) * M * N;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const int64_t row = first_row + patch_row + i / kVector * (4 * kVector) + i % kVector;
    if (row >= M) continue;
#pragma unroll
    for (int j = 0; j < kThreadCols; j += kVector) {
      const int64_t col = first_col + patch_col + j * 8;
      Strip strip;
#pragma unroll
      for (int e = 0; e < kVector; ++e) strip.elements[e] = sum[i][j + e];
      if (vectors) {
        store_vec(C + row * N, col, N, strip);
      } else {
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          if (col + e < N) C[row * N + col + e] = strip.elements[e];
        }
      }
    }
  }
}

// C[i] = the sum of the splits' partial results, in the order of the splits.
template <typename scalar_t>
__global__ void sum_splits_kernel(const scalar_t* __restrict__ partial,  // [splits, elements]
                                  scalar_t* __restrict__ C, int64_t elements, int splits) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements;
       i += stride) {
    scalar_t sum = partial[i];
    for (int s = 1; s < splits; ++s) sum += partial[s * elements + i];
    C[i] = sum;
  }
}

}  // namespace simt
}  // namespace my_ops
