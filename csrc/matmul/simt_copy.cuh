// How a tile of an operand of matmul gets from global to shared memory. Device only, needs no
// torch.
#pragma once

#include <cstdint>

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

// Predicated by hand, because ptxas makes branches of many conditional copies, and cannot schedule
// around those: 3 % of the time where operands are copied by elements.
template <int kBytes>
__device__ __forceinline__ void copy_async_if(bool wanted, uint32_t shared, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile(
        "{\n.reg .pred wanted;\n"
        "setp.ne.s32 wanted, %0, 0;\n"
        "@wanted cp.async.cg.shared.global [%1], [%2], 16;\n}" ::"r"(static_cast<int>(wanted)),
        "r"(shared), "l"(global));
  } else {
    asm volatile(
        "{\n.reg .pred wanted;\n"
        "setp.ne.s32 wanted, %0, 0;\n"
        "@wanted cp.async.ca.shared.global [%1], [%2], %3;\n}" ::"r"(static_cast<int>(wanted)),
        "r"(shared), "l"(global), "n"(kBytes));
  }
}

// Writes zeros and reads nothing where `inside` is false.
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
  static constexpr int kLanesAlongK = kThreads / kLanesAlongRows;
  static constexpr int kPassDepth = kLanesAlongK < kDepth ? kLanesAlongK : kDepth;
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
    // The operand has whole vectors: the last one is a valid place to clamp to.
    const int64_t last = (rows - 1) / kWidth * kWidth - first_row;
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

  // Issues the i-th of this thread's copies into the tile at shared address `tile`, if wanted.
  __device__ __forceinline__ void copy_if(bool wanted, int i, uint32_t tile) const {
    copy_async_if<kBytes>(wanted && takes_part(), destination(i, tile), source(i));
  }

  // The same for a tile with only `depth` valid k: the rest becomes zeros.
  __device__ __forceinline__ void copy_partial(int i, uint32_t tile, int depth) const {
    const bool inside = lane_k_ + depth_pass(i) * kPassDepth < depth;
    if (takes_part()) copy_async_or_zero<kBytes>(destination(i, tile), source(i), inside);
  }

 private:
  // A small tile is less than one pass: the threads past its end have nothing to copy.
  __device__ __forceinline__ bool takes_part() const {
    return kLanesAlongK <= kDepth || lane_k_ < kDepth;
  }

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

}  // namespace simt
}  // namespace my_ops
