// A row on its way into shared memory. Device only, needs no torch.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

#include "rmsnorm/row_registers.cuh"

namespace my_ops {

// The rows of grad_sum, brought to shared memory a row ahead of their use: there are no registers
// left for them. Aligned rows only. `own` has a place for each of a thread's chunks, `stride`
// apart.
template <typename x_t, int kVectors>
class RowAhead {
  static constexpr int N = kChunkElements<x_t>;

 public:
  __device__ __forceinline__ RowAhead(const x_t* data, const RowLayout& layout, int64_t rows,
                                      const OwnedColumns& owned, int thread, int width, Pack* own,
                                      int stride)
      : data_(data),
        layout_(layout),
        rows_(rows),
        owned_(owned),
        thread_(thread),
        width_(width),
        own_(own),
        stride_(stride) {}

  // The row that request() is for from here on.
  __device__ __forceinline__ void begin(int64_t row) {
    first_ = data_ + layout_.offset(min(row, rows_ - 1)) + owned_.first + thread_ * N;
  }
  // Once for every chunk of a row, in turn.
  __device__ __forceinline__ void request(int v) {
    if (v * width_ + thread_ < owned_.chunks) {
      __pipeline_memcpy_async(own_ + v * stride_, first_ + v * width_ * N, kChunkBytes);
    }
    __pipeline_commit();
  }
  __device__ __forceinline__ Pack take(int v) {
    __pipeline_wait_prior(kVectors - 1);
    return own_[v * stride_];
  }

 private:
  const x_t* const data_;
  const RowLayout& layout_;
  const int64_t rows_;
  const OwnedColumns& owned_;
  const int thread_;
  const int width_;
  Pack* const own_;
  const int stride_;
  const x_t* first_;
};

}  // namespace my_ops
