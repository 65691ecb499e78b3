// Host: what every operator does before it allocates, and how it chooses between CPU and CUDA.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace my_ops {

// Makes the device of `tensor` current and sends the ATen calls of an operator's body straight to
// the backend: without it `at::mm` would follow autocast, and `copy_` would record a gradient.
class OperatorGuard {
 public:
  explicit OperatorGuard(const at::Tensor& tensor)
      : device_(tensor.device()), autocast_(c10::autocast_dispatch_keyset) {}

 private:
  c10::DeviceGuard device_;
  at::AutoDispatchBelowADInplaceOrView autograd_;
  c10::impl::ExcludeDispatchKeyGuard autocast_;
};

}  // namespace my_ops

// Calls `function`_cuda or `function`_cpu by the device of `tensor`. In a build without CUDA that
// is the CPU: check_device() has refused all others.
#ifdef MY_OPS_WITH_CUDA
#define MY_OPS_CALL_ON_DEVICE_OF(tensor, function, ...) \
  ((tensor).is_cuda() ? function##_cuda(__VA_ARGS__) : function##_cpu(__VA_ARGS__))
#else
#define MY_OPS_CALL_ON_DEVICE_OF(tensor, function, ...) function##_cpu(__VA_ARGS__)
#endif
