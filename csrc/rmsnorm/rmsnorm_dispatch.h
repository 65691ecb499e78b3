// The dtypes of rmsnorm's kernels, for CPU and CUDA alike. Host only.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <type_traits>

namespace my_ops {

// Calls function(x, weight) with a zero of each dtype: the weight has x's dtype or, for a 16-bit x,
// may be float32.
template <typename Function>
void rmsnorm_dispatch(const at::Tensor& x, const at::Tensor& weight, const Function& function) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rmsnorm", [&] {
    if constexpr (sizeof(scalar_t) == 2) {
      if (weight.defined() && weight.scalar_type() == at::kFloat) {
        function(scalar_t(0), float(0));
        return;
      }
    }
    function(scalar_t(0), scalar_t(0));
  });
}

// The address of an argument that may be absent.
template <typename scalar_t>
const scalar_t* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<scalar_t>() : nullptr;
}
template <typename scalar_t>
scalar_t* mutable_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<scalar_t>() : nullptr;
}

}  // namespace my_ops
