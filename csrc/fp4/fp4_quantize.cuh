// Device: quantize rows to FP4. One read of x and one write of the codes: 2.56 bytes an element of
// bfloat16, so memory bounds it as long as an element costs fewer than about 17 instructions.
// Needs no torch header.
#pragma once

#include "common/nv_fp4.cuh"
#include "common/philox.h"
#include "fp4/fp4_block.h"
#include "fp4/fp4_launch.cuh"
#include "fp4/fp4_pack.cuh"

namespace my_ops {

// Indexing at run time would put the words into local memory.
__device__ __forceinline__ uint32_t word_of(const PhiloxWords& random, int i) {
  const uint32_t low = i & 1 ? random.word[1] : random.word[0];
  const uint32_t high = i & 1 ? random.word[3] : random.word[2];
  return i & 2 ? high : low;
}

// The lanes of a block are neighbours: each finds the largest magnitude of its own elements, the
// shuffles find the block's, and all of them compute the block's scale. The first one stores it.
template <Fp4Format kFormat, bool kStochastic, bool kAligned, typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads)
    fp4_quantize_kernel(const scalar_t* x,             // [rows, K], row_stride
                        __nv_fp4x2_storage_t* packed,  // [rows, ceil(K / 2)]
                        uint8_t* scale,                // [rows, ceil(K / kBlock)]
                        Fp4Rows shape,
                        const float* amax,  // of the tensor; null: one level, or MXFP4
                        Fp4ScaleMode scale_mode, uint64_t seed) {
  constexpr int kN = kVecElements<scalar_t>;
  constexpr int kBlock = fp4_block_size(kFormat);
  constexpr int kLanes = kBlock / kN;
  const int64_t K = shape.K;
  const int64_t packed_stride = (K + 1) / 2, scale_stride = (K + kBlock - 1) / kBlock;
  const int64_t first_pack = int64_t{blockIdx.x} * blockDim.x * kFp4Packs + threadIdx.x;

  // The whole thread block walks on together: the shuffles need every lane.
  for (int64_t tile = blockIdx.y; tile * blockDim.y < shape.rows; tile += gridDim.y) {
    const int64_t row = tile * blockDim.y + threadIdx.y;
    const int64_t end = row < shape.rows ? K : 0;

    // Load
    Fp4Pack<scalar_t> packs[kFp4Packs];
#pragma unroll
    for (int p = 0; p < kFp4Packs; ++p) {
      const int64_t k = (first_pack + p * blockDim.x) * kN;
      packs[p] = load_pack<kAligned>(x + row * shape.row_stride, k, end);
    }
    Nvfp4TensorScale tensor;
    if (kFormat == Fp4Format::nvfp4 && amax) tensor = nvfp4_tensor_scale(*amax);

#pragma unroll
    for (int p = 0; p < kFp4Packs; ++p) {
      const int64_t k = (first_pack + p * blockDim.x) * kN;

      // Reduce
      float block_amax = largest_magnitude</*kKeepNaN=*/true>(packs[p]);
#pragma unroll
      for (int lane = 1; lane < kLanes; lane *= 2) {
        block_amax = larger<true>(block_amax, __shfl_xor_sync(~0u, block_amax, lane));
      }
      Fp4BlockScale block;
      if constexpr (kFormat == Fp4Format::nvfp4) {
        block = nvfp4_block_scale(block_amax, tensor);
      } else {
        block = mxfp4_block_scale(block_amax, scale_mode);
      }

      // Compute
      float elements[kN];
#pragma unroll
      for (int e = 0; e < kN; ++e) elements[e] = to_float(packs[p].elements[e]);
      uint32_t codes;
      if constexpr (kStochastic) {
        const uint64_t counter = row * ((K + 15) / 16) + k / 16;
        const PhiloxWords random = philox_4x32_10(seed, counter);
        uint32_t words[kN / 4];
#pragma unroll
        for (int w = 0; w < kN / 4; ++w) words[w] = word_of(random, k % 16 / 4 + w);
        codes = fp4_encode_stochastic<kN>(elements, block, words);
      } else {
        codes = fp4_encode<kN>(elements, block);
      }

      // Store
      if (k < end) {
        store_codes<kAligned, kN>(packed + row * packed_stride, codes, k, K);
        if (k % kBlock == 0) scale[row * scale_stride + k / kBlock] = block.byte;
      }
    }
  }
}

}  // namespace my_ops
