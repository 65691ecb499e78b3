// From float32 matrices to the planes of wgmma_planes.cuh. Device only, needs no torch.
//
// One launch does A and B^T. A block owns kGroupRows rows and some K tiles of one of them. A warp
// takes 8 rows x 4 chunks of 16 bytes at a time, whichever way the source lies in memory: reads
// and writes then touch whole 32-byte sectors in both, with no transposition in between.
#pragma once

#include <cstdint>

#include "common/overlap.cuh"
#include "matmul/wgmma_planes.cuh"
#include "matmul/wgmma_splitter.cuh"

namespace my_ops {
namespace tensor_core {

// A matrix [rows, K] of which one stride is 1, and where its planes go.
struct Source {
  const float* data;
  int64_t row_stride, k_stride;
  int64_t rows, K;
  int groups;
  bool vectors;  // runs along K in rows of whole aligned 16-byte vectors
  char* planes;
  float* unscale;  // [groups, K units, kGroupRows]; fp16 only
};

struct Sources {
  Source of[2];
  int k_tiles;
  int* unfit;          // set to 1 where an element is one that splitting would spoil
  const int* only_if;  // nothing is done where this points to 0
};

constexpr uint32_t kInfinityBits = 0x7F800000;

// fp16 operands are multiplied by a power of two that brings the largest of kScaleTiles K tiles of
// a row to [2^14, 2^15): both halves of all elements above 2^-17 of it are then normal numbers. The
// power is at most 2^75, and blocks that reach 2^60 are unfit: so no product of a partial sum and
// one factor leaves the range of a float.
constexpr uint32_t kUnfitBits = (127 + 60) << 23;

__device__ __forceinline__ int scale_exponent(uint32_t max_bits) {
  return min(141 - static_cast<int>(max_bits >> 23), 75);
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

// Elements [k, k + kCount) of a row; zeros outside of the matrix.
template <int kCount>
__device__ __forceinline__ void load_elements(const Source& source, int64_t row, int64_t k,
                                              float (&x)[kCount]) {
  if (row >= source.rows) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) x[e] = 0;
    return;
  }
  const float* const data = source.data + row * source.row_stride + k * source.k_stride;
  if (source.vectors && k + kCount <= source.K) {
#pragma unroll
    for (int e = 0; e < kCount; e += 4) {
      const float4 vector = *reinterpret_cast<const float4*>(data + e);
      x[e] = vector.x, x[e + 1] = vector.y, x[e + 2] = vector.z, x[e + 3] = vector.w;
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) x[e] = k + e < source.K ? data[e * source.k_stride] : 0;
}

constexpr int kSplitThreads = 256;

// 16-byte chunks of each of its rows that a block splits: at least one unit of kScaleTiles.
template <class Layout, int kScaleTiles>
constexpr int kSplitChunks =
    kScaleTiles * Layout::kRowBytes / 16 > 16 ? kScaleTiles* Layout::kRowBytes / 16 : 16;

// A thread takes every fourth chunk of one row of its block.
template <Element kElement, class Layout, int kScaleTiles>
__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const __grid_constant__ Sources sources) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Splitting = Splitter<kElement, Layout::kPlanes>;
  constexpr int kBlockChunks = kSplitChunks<Layout, kScaleTiles>;
  constexpr int kElements = Splitting::kElements, kShare = kBlockChunks / 4;
  constexpr int kRowChunks = Layout::kRowBytes / 16;
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (sources.only_if != nullptr && *sources.only_if == 0) return;
  const int64_t chunks = int64_t{sources.k_tiles} * kRowChunks;
  const int64_t blocks_per_group = (chunks + kBlockChunks - 1) / kBlockChunks;
  int64_t group = blockIdx.x / blocks_per_group;
  const bool second = group >= sources.of[0].groups;
  const Source& source = sources.of[second];
  if (second) group -= sources.of[0].groups;
  const int row = static_cast<int>(threadIdx.x) / 4;
  const int64_t first_chunk = blockIdx.x % blocks_per_group * kBlockChunks + threadIdx.x % 4;

  float x[kShare][kElements];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    load_elements(source, group * kGroupRows + row, (first_chunk + i * 4) * kElements, x[i]);
  }
  bool unfit = false;
  float scale[kShare];
  if constexpr (kElement == Element::fp16) {
    // The four lanes of a row hold a unit of kScaleTiles K tiles in kUnitShare of their chunks.
    constexpr int kUnitShare = kScaleTiles * kRowChunks / 4;
    static_assert(kShare % kUnitShare == 0, "whole units");
#pragma unroll
    for (int i = 0; i < kShare; i += kUnitShare) {
      uint32_t max_bits = 0;
#pragma unroll
      for (int e = 0; e < kUnitShare * kElements; ++e) {
        max_bits = max(max_bits, __float_as_uint(x[i + e / kElements][e % kElements]) & 0x7FFFFFFF);
      }
      max_bits = max(max_bits, __shfl_xor_sync(~0u, max_bits, 1));
      max_bits = max(max_bits, __shfl_xor_sync(~0u, max_bits, 2));
      unfit |= max_bits >= kUnfitBits;
      const int exponent = scale_exponent(max_bits);
#pragma unroll
      for (int e = 0; e < kUnitShare; ++e) scale[i + e] = power_of_two(exponent);
      if constexpr (Layout::kPlanes == 1) {
        // Without a second half an element under 2^-14 has fewer than 11 bits. One in a unit is
        // chance (once in 2^21 units of N(0,1)) and harmless; two are a range too wide.
        int small = 0;
#pragma unroll
        for (int e = 0; e < kUnitShare * kElements; ++e) {
          const float value = fabsf(x[i + e / kElements][e % kElements]) * scale[i];
          small += value > 0 && value < 0x1p-14f;
        }
        small += __shfl_xor_sync(~0u, small, 1);
        small += __shfl_xor_sync(~0u, small, 2);
        unfit |= small > 1;
      }
      const int64_t k_tile = (first_chunk + i * 4) / kRowChunks;
      if (threadIdx.x % 4 == 0 && k_tile < sources.k_tiles) {
        const int64_t units = sources.k_tiles / kScaleTiles;
        source.unscale[(group * units + k_tile / kScaleTiles) * kGroupRows + row] =
            power_of_two(-exponent);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int64_t chunk = first_chunk + i * 4;
    if (chunk >= chunks) break;
    if constexpr (kElement == Element::bf16) {
#pragma unroll
      for (float value : x[i]) {
        unfit |= (__float_as_uint(value) & kInfinityBits) == kInfinityBits;
      }
    }
    uint4 planes[Layout::kPlanes];
    Splitting::split(x[i], kElement == Element::fp16 ? scale[i] : 1, planes);
    const int64_t k_tile = chunk / kRowChunks;
    const int offset = Layout::chunk_offset(row, static_cast<int>(chunk % kRowChunks));
#pragma unroll
    for (int plane = 0; plane < Layout::kPlanes; ++plane) {
      char* const block =
          source.planes + Layout::block_offset(group, k_tile, sources.k_tiles, plane);
      *reinterpret_cast<uint4*>(block + offset) = planes[plane];
    }
  }
  if (unfit) *sources.unfit = 1;
#endif
}

}  // namespace tensor_core
}  // namespace my_ops
