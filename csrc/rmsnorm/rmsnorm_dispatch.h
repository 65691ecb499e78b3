// The dtypes of rmsnorm's kernels, for CPU and CUDA alike. Host only.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "common/dispatch.h"

namespace my_ops {

// Calls function(x, weight) with a zero of each dtype: the weight has x's dtype or, for a 16-bit x,
// may be float32.
template <typename Function>
void rmsnorm_dispatch(const TensorView& x, const TensorView& weight, const Function& function) {
  dispatch(Types<float, double, c10::Half, c10::BFloat16>(), x.scalar_type(), [&](auto x_zero) {
    if constexpr (sizeof(x_zero) == 2) {
      if (weight.defined() && weight.scalar_type() == ScalarType::Float) {
        return function(x_zero, float(0));
      }
    }
    function(x_zero, x_zero);
  });
}

}  // namespace my_ops
