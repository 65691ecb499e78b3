// Host: tensors as this room's kernels see them, and the shapes of their results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "common/ceil_div.h"
#include "common/fp4.h"
#include "common/last_dimension.h"
#include "fp4/fp4_rows.h"

namespace my_ops {

// x as rows, or a copy of it where its last dimension is not dense or its leading ones do not
// collapse into one.
inline std::pair<at::Tensor, Fp4Rows> as_rows(const at::Tensor& x) {
  const int64_t K = x.size(-1);
  const int64_t rows = K == 0 ? 0 : x.numel() / K;
  bool regular = K == 1 || x.stride(-1) == 1;
  int64_t row_stride = K, expected = -1;  // -1: no leading dimension seen yet
  for (int64_t d = x.dim() - 2; d >= 0; --d) {
    if (x.size(d) == 1) continue;
    if (expected == -1) {
      row_stride = expected = x.stride(d);
    }
    regular = regular && x.stride(d) == expected;
    expected *= x.size(d);
  }
  if (regular) return {x, {rows, K, row_stride}};
  return {x.contiguous(), {rows, K, K}};
}

// The codes and the scales of x in FP4, still to be written.
inline std::pair<at::Tensor, at::Tensor> empty_fp4(const at::Tensor& x, Fp4Format format) {
  const int64_t K = x.size(-1);
  const auto bytes = x.options().dtype(at::kByte);
  return {at::empty(with_last(x.sizes(), ceil_div(K, 2)), bytes),
          at::empty(with_last(x.sizes(), ceil_div(K, fp4_block_size(format))), bytes)};
}

}  // namespace my_ops
