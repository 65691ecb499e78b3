// The functions of tensor_view.h and dispatch.h that need torch itself.
#include "common/tensor_view.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "common/dispatch.h"

namespace my_ops {

TensorView::TensorView(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  tensor_ = &tensor;
  data_ = tensor.const_data_ptr();
  sizes_ = tensor.sizes().data();
  strides_ = tensor.strides().data();
  dims_ = tensor.dim();
  numel_ = tensor.numel();
  element_bytes_ = tensor.element_size();
  dtype_ = tensor.scalar_type();
}

void* TensorView::mutable_data() const { return tensor_ ? tensor_->mutable_data_ptr() : nullptr; }

OwnedTensor::~OwnedTensor() { delete tensor_; }

void raise_no_kernel(ScalarType dtype) {
  TORCH_CHECK(false, "my_ops has no kernel for the dtype ", dtype);
}

OwnedTensor OwnedTensor::empty(int64_t elements, ScalarType dtype) {
  return OwnedTensor(
      new at::Tensor(at::empty({elements}, at::TensorOptions(at::kCUDA).dtype(dtype))));
}

OwnedTensor OwnedTensor::contiguous_copy(const TensorView& tensor) {
  const auto source = tensor.transposed_ ? tensor.tensor_->t() : *tensor.tensor_;
  return OwnedTensor(new at::Tensor(source.clone(at::MemoryFormat::Contiguous)));
}

TensorView OwnedTensor::view() const { return tensor_ ? TensorView(*tensor_) : TensorView(); }

}  // namespace my_ops
