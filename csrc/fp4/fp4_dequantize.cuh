// Device only: rows of FP4 back to 16-bit or float32 elements: value = code * (block scale *
// global), rounded to float32 and then to the output. Needs no torch.
#pragma once

#include "common/fp4.h"
#include "common/fp4_decode.cuh"
#include "common/nv_fp4.cuh"
#include "fp4/fp4_launch.cuh"
#include "fp4/fp4_pack.cuh"

namespace my_ops {

__device__ __forceinline__ void round_to(float value, float& y) { y = value; }
__device__ __forceinline__ void round_to(float value, __half& y) { y = __float2half_rn(value); }
__device__ __forceinline__ void round_to(float value, __nv_bfloat16& y) {
  y = __float2bfloat16_rn(value);
}

// A lane reads the codes of one pack and the scale of its block, and writes the pack.
template <Fp4Format kFormat, bool kAligned, typename scalar_t>
__global__ void __launch_bounds__(kFp4Threads)
    fp4_dequantize_kernel(const __nv_fp4x2_storage_t* packed,  // [rows, ceil(K / 2)]
                          const uint8_t* scale,                // [rows, ceil(K / kBlock)]
                          const float* amax,                   // of the tensor, or null
                          scalar_t* y,                         // [rows, K]
                          Fp4Rows shape) {
  constexpr int kN = kVecElements<scalar_t>;
  constexpr int kBlock = fp4_block_size(kFormat);
  const int64_t K = shape.K;
  const int64_t packed_stride = (K + 1) / 2, scale_stride = (K + kBlock - 1) / kBlock;
  const int64_t first_pack = int64_t{blockIdx.x} * blockDim.x * kFp4Packs + threadIdx.x;

  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < shape.rows;
       row += int64_t{gridDim.y} * blockDim.y) {
    // Load
    uint32_t codes[kFp4Packs];
    uint8_t scales[kFp4Packs];
#pragma unroll
    for (int p = 0; p < kFp4Packs; ++p) {
      const int64_t k = (first_pack + p * blockDim.x) * kN;
      codes[p] = load_codes<kAligned, kN>(packed + row * packed_stride, k, K);
      scales[p] = k < K ? scale[row * scale_stride + k / kBlock] : uint8_t{0};
    }
    const float global =
        kFormat == Fp4Format::nvfp4 && amax ? nvfp4_tensor_scale(*amax).global : 1.0f;

    // Compute and store
#pragma unroll
    for (int p = 0; p < kFp4Packs; ++p) {
      const int64_t k = (first_pack + p * blockDim.x) * kN;
      const float factor = kFormat == Fp4Format::nvfp4 ? nvfp4_decode_scale(scales[p], global)
                                                       : e8m0_decode(scales[p]);
      __half2 pairs[4];
      e2m1_decode8(codes[p], pairs);
      Fp4Pack<scalar_t> pack;
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const float code = e < 4 ? __low2float(pairs[e]) : __high2float(pairs[e - 4]);
        round_to(mul_rn(code, factor), pack.elements[e]);
      }
      store_pack<kAligned>(y + row * K, k, K, pack);
    }
  }
}

}  // namespace my_ops
