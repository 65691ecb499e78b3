// Host: what a kernel is given of a tensor. Needs no torch.
//
// nvcc parses a .cu file once for the host and once more for every architecture, and the header of
// at::Tensor takes seconds each time: .cu files see tensors through this one. torch_bridge.cpp has
// what needs the tensor itself.
#pragma once

#include <cstdint>
#include <utility>

#include "common/dtype.h"

namespace at {
class Tensor;
}

namespace my_ops {

// Reads as the tensor does, and must not outlive it.
class TensorView {
 public:
  TensorView() = default;                // of an undefined tensor
  TensorView(const at::Tensor& tensor);  // implicit: launchers are called with tensors

  bool defined() const { return tensor_ != nullptr; }
  ScalarType scalar_type() const { return dtype_; }
  int64_t element_size() const { return element_bytes_; }
  int64_t numel() const { return numel_; }
  int64_t dim() const { return dims_; }
  int64_t size(int64_t dim) const { return sizes_[index(dim)]; }
  int64_t stride(int64_t dim) const { return strides_[index(dim)]; }

  // Of a matrix: its transpose.
  TensorView t() const {
    TensorView other = *this;
    other.transposed_ = !transposed_;
    return other;
  }

  // Null where the tensor is undefined.
  template <typename T = void>
  const T* const_data_ptr() const {
    return static_cast<const T*>(data_);
  }
  template <typename T = void>
  T* mutable_data_ptr() const {
    return static_cast<T*>(mutable_data());
  }

 private:
  friend class OwnedTensor;

  int64_t index(int64_t dim) const {
    if (dim < 0) dim += dims_;
    return transposed_ ? 1 - dim : dim;
  }
  void* mutable_data() const;

  const at::Tensor* tensor_ = nullptr;
  const void* data_ = nullptr;
  const int64_t* sizes_ = nullptr;
  const int64_t* strides_ = nullptr;
  int64_t dims_ = 0;
  int64_t numel_ = 0;
  int64_t element_bytes_ = 0;
  ScalarType dtype_ = ScalarType::Undefined;
  bool transposed_ = false;
};

// A tensor on the current CUDA device that a launcher makes for itself. torch's allocator hands its
// memory out again in the order of the stream, so it may go before the kernels that use it ran.
class OwnedTensor {
 public:
  OwnedTensor() = default;  // undefined
  OwnedTensor(OwnedTensor&& other) noexcept : tensor_(std::exchange(other.tensor_, nullptr)) {}
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~OwnedTensor();

  static OwnedTensor empty(int64_t elements, ScalarType dtype);
  static OwnedTensor contiguous_copy(const TensorView& tensor);

  bool defined() const { return tensor_ != nullptr; }
  TensorView view() const;

  // Null where undefined.
  template <typename T>
  T* data_ptr() const {
    return view().mutable_data_ptr<T>();
  }

 private:
  explicit OwnedTensor(at::Tensor* tensor) : tensor_(tensor) {}

  at::Tensor* tensor_ = nullptr;
};

}  // namespace my_ops
