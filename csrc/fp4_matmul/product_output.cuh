// From a warp's sums in registers to the product in memory: bias, one rounding, any strides. Device
// only, needs no torch.
#pragma once

#include "fp4_matmul/fp4_misfits.cuh"
#include "fp4_matmul/operands.cuh"

namespace my_ops {

template <int kBlockM_, int kBlockN_, int kWarpM_, int kWarpN_, int kStages_>
struct ProductTile {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_, kStages = kStages_;
  static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_;
  static constexpr int kWarpsN = kBlockN / kWarpN;
  static constexpr int kThreads = kBlockM / kWarpM * kWarpsN * 32;
  static constexpr int kTilesM = kWarpM / 16, kTilesN = kWarpN / 16;
  static constexpr int kStagingPitch = kWarpN + 4;  // floats
};

template <typename Tile>
using Sums = float[Tile::kTilesM][2 * Tile::kTilesN][4];

// Where the product goes: element (m, n) is data[m * row_stride + n * col_stride], rounded once.
struct ProductOutput {
  void* data;
  DenseType type;
  int64_t M, N, K;
  int64_t row_stride;
  int64_t col_stride;
  const void* bias;  // [N] or null
  DenseType bias_type;
  Misfits only_if_any = {};  // where it has flags and none is set there is nothing to do
};

__device__ __forceinline__ float load_bias(const ProductOutput& out, int64_t n) {
  if (out.bias == nullptr) return 0.0f;
  if (out.bias_type == DenseType::float32) return static_cast<const float*>(out.bias)[n];
  if (out.bias_type == DenseType::float16) {
    return __half2float(static_cast<const __half*>(out.bias)[n]);
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(out.bias)[n]);
}

__device__ __forceinline__ void store_element(const ProductOutput& out, int64_t m, int64_t n,
                                              float value) {
  const int64_t offset = m * out.row_stride + n * out.col_stride;
  if (out.type == DenseType::float32) {
    static_cast<float*>(out.data)[offset] = value;
  } else if (out.type == DenseType::float16) {
    static_cast<__half*>(out.data)[offset] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(out.data)[offset] = __float2bfloat16_rn(value);
  }
}

// Writes a warp's sums by way of shared memory, 16 rows at a time, so that neighbouring lanes write
// neighbouring elements whichever dimension of out is the dense one. In registers, lane l holds
// rows l / 4 and l / 4 + 8, columns 2 * (l % 4) and the next, of each 16 x 8 sum.
template <typename Tile>
__device__ __forceinline__ void store_sums(const ProductOutput& out, const Sums<Tile>& sums,
                                           float* staging, int64_t first_m, int64_t first_n,
                                           float scale) {
  const int lane = threadIdx.x % 32;
  const bool along_m = out.row_stride == 1;
#pragma unroll
  for (int i = 0; i < Tile::kTilesM; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * Tile::kTilesN; ++j) {
#pragma unroll
      for (int element = 0; element < 4; ++element) {
        const int row = lane / 4 + element / 2 * 8;
        const int col = 8 * j + lane % 4 * 2 + element % 2;
        staging[row * Tile::kStagingPitch + col] = sums[i][j][element] * scale;
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int index = lane; index < 16 * Tile::kWarpN; index += 32) {
      const int row = along_m ? index % 16 : index / Tile::kWarpN;
      const int col = along_m ? index / 16 : index % Tile::kWarpN;
      const int64_t m = first_m + 16 * i + row;
      const int64_t n = first_n + col;
      if (m < out.M && n < out.N) {
        store_element(out, m, n, staging[row * Tile::kStagingPitch + col] + load_bias(out, n));
      }
    }
    __syncwarp();
  }
}

}  // namespace my_ops
