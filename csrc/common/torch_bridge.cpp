// The functions of tensor_view.h, dispatch.h and cuda_context.h that need torch itself: one file,
// and no ATen/ops header, since parsing torch is all the time that it takes to compile.
#include <ATen/core/Tensor.h>

#include "common/checks.h"
#include "common/dispatch.h"
#include "common/tensor_view.h"

#ifdef MY_OPS_WITH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "common/cuda_context.h"
#endif

namespace my_ops {

template <typename... T>
constexpr bool numbered_as_in_torch(Types<T...>) {
  return ((static_cast<at::ScalarType>(kScalarType<T>) == c10::CppTypeToScalarType<T>::value) &&
          ...);
}
static_assert(
    numbered_as_in_torch(Types<uint8_t, int8_t, int16_t, int32_t, int64_t, float, double, c10::Half,
                               c10::BFloat16, c10::complex<float>, c10::complex<double>>()));

TensorView::TensorView(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  tensor_ = &tensor;
  data_ = tensor.const_data_ptr();
  sizes_ = tensor.sizes().data();
  strides_ = tensor.strides().data();
  dims_ = tensor.dim();
  numel_ = tensor.numel();
  element_bytes_ = tensor.element_size();
  dtype_ = static_cast<ScalarType>(tensor.scalar_type());
}

void* TensorView::mutable_data() const { return tensor_ ? tensor_->mutable_data_ptr() : nullptr; }

OwnedTensor::~OwnedTensor() { delete tensor_; }

OwnedTensor OwnedTensor::contiguous_copy(const TensorView& tensor) {
  const auto source = tensor.transposed_ ? tensor.tensor_->t() : *tensor.tensor_;
  return OwnedTensor(new at::Tensor(source.clone(at::MemoryFormat::Contiguous)));
}

TensorView OwnedTensor::view() const { return tensor_ ? TensorView(*tensor_) : TensorView(); }

void raise_no_kernel(ScalarType dtype) {
  TORCH_CHECK(false, "my_ops has no kernel for the dtype ", static_cast<at::ScalarType>(dtype));
}

#ifdef MY_OPS_WITH_CUDA

OwnedTensor OwnedTensor::empty(int64_t elements, ScalarType dtype) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(static_cast<at::ScalarType>(dtype));
  return OwnedTensor(new at::Tensor(at::detail::empty_cuda({elements}, options)));
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream(); }

const cudaDeviceProp& current_device_properties() {
  return *at::cuda::getCurrentDeviceProperties();
}

void check_blocks(const char* op, int64_t blocks) {
  MY_OPS_CHECK(blocks <= INT32_MAX, op, "the result", c10::str("at most ", INT32_MAX, " tiles"),
               blocks);
}

void check_cuda(cudaError_t error, const char* file, const char* function, int line) {
  if (error == cudaSuccess) return;
  c10::cuda::c10_cuda_check_implementation(static_cast<int32_t>(error), file, function,
                                           static_cast<uint32_t>(line), true);
}

#endif

}  // namespace my_ops
