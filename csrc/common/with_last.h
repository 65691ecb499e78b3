// Host: the sizes of a result that differs from an argument in its last dimension.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

namespace my_ops {

// The sizes of `like` with another last one.
inline at::DimVector with_last(const at::Tensor& like, int64_t last) {
  at::DimVector sizes(like.sizes());
  sizes.back() = last;
  return sizes;
}

}  // namespace my_ops
