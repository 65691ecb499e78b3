// Host: how the copy engine finds boxes of a matrix (sm90_bulk_copy.cuh). Needs no torch.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace my_ops {

// cuTensorMapEncodeTiled, looked up at run time: my_ops cannot link with libcuda, which a machine
// without a driver does not have. Null where the driver is older than Hopper.
inline auto tensor_map_encoder() {
  using Encoder = decltype(&cuTensorMapEncodeTiled);
  static const Encoder encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encoder>(function)
               : nullptr;
  }();
  return encoder;
}

// A map of any rank. Dimensions begin with the innermost one, which is dense.
template <int kRank>
bool encode_boxes(CUtensorMap& map, CUtensorMapDataType type, const void* data,
                  const cuuint64_t (&sizes)[kRank], const cuuint64_t (&stride_bytes)[kRank - 1],
                  const cuuint32_t (&box)[kRank], CUtensorMapSwizzle swizzle) {
  const auto encoder = tensor_map_encoder();
  if (encoder == nullptr) return false;
  cuuint32_t steps[kRank];
  for (cuuint32_t& step : steps) step = 1;
  return encoder(&map, type, kRank, const_cast<void*>(data), sizes, stride_bytes, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// A matrix with dense rows that start at multiples of 16 bytes, in boxes of 128 bytes of `box_rows`
// rows with the hardware's 128-byte swizzle, or of fewer bytes without. False where there is no
// such map.
inline bool encode_tensor_map(CUtensorMap& map, CUtensorMapDataType type, int element_bytes,
                              const void* data, int64_t rows, int64_t cols, int64_t row_stride,
                              int box_rows, uint32_t box_bytes = 128) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride_bytes[1] = {static_cast<cuuint64_t>(row_stride) * element_bytes};
  const cuuint32_t box[2] = {box_bytes / element_bytes, static_cast<cuuint32_t>(box_rows)};
  return encode_boxes(map, type, data, sizes, stride_bytes, box,
                      box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
}

// Of 16-bit elements, as they are.
inline bool encode_tensor_map(CUtensorMap& map, const void* data, int64_t rows, int64_t cols,
                              int64_t row_stride, int box_rows) {
  return encode_tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, data, rows, cols, row_stride,
                           box_rows);
}

// Of 16-bit elements, in boxes of `box_parts` parts of 64 of each of `box_rows` rows: row after
// row, every part a row of 128 bytes of the swizzle. cols is a multiple of 64.
inline bool encode_parts_map(CUtensorMap& map, const void* data, int64_t rows, int64_t cols,
                             int64_t row_stride, int box_rows, int box_parts) {
  const cuuint64_t sizes[3] = {64, static_cast<cuuint64_t>(cols / 64),
                               static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride_bytes[2] = {128, static_cast<cuuint64_t>(row_stride) * 2};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_parts),
                             static_cast<cuuint32_t>(box_rows)};
  return encode_boxes(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, data, sizes, stride_bytes, box,
                      CU_TENSOR_MAP_SWIZZLE_128B);
}

// Of bytes.
inline bool encode_byte_map(CUtensorMap& map, const uint8_t* data, int64_t rows, int64_t cols,
                            int box_rows, uint32_t box_bytes) {
  return encode_tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, data, rows, cols, cols, box_rows,
                           box_bytes);
}

// Of float32 elements, which the copy rounds to the nearest TF32, ties to even; infinities and NaNs
// stay what they are (seen on an H200).
inline bool encode_tf32_tensor_map(CUtensorMap& map, const float* data, int64_t rows, int64_t cols,
                                   int64_t row_stride, int box_rows) {
  return encode_tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4, data, rows, cols, row_stride,
                           box_rows);
}

}  // namespace my_ops
