// Host: tensors as rows along their last dimension.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

namespace my_ops {

// `like` with another last size.
inline at::DimVector with_last(at::IntArrayRef like, int64_t last) {
  at::DimVector sizes(like);
  sizes.back() = last;
  return sizes;
}

// All leading dimensions as one: a view where the strides allow it. Not reshape(-1, K), which
// cannot tell the rows of a matrix without columns.
inline at::Tensor flatten_rows(const at::Tensor& x) {
  if (x.dim() == 2) return x;
  const auto leading = x.sizes().slice(0, x.dim() - 1);
  return x.reshape({c10::multiply_integers(leading), x.size(-1)});
}

}  // namespace my_ops
