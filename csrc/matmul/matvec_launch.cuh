// Launches matvec where it is the right kernel. Included by matmul_cuda.cu and
// matmul_float64_cuda.cu.
#pragma once

#include "common/launch.cuh"
#include "common/tensor_view.h"
#include "matmul/matvec.cuh"

namespace my_ops {

// C [rows, cols] = x [rows, K] W [K, cols], C in any strides.
template <typename scalar_t, bool kAlongK>
void launch_matvec(const TensorView& x, const TensorView& W, const TensorView& C) {
  const int64_t rows = x.size(0), K = x.size(1), cols = W.size(1);
  const int sms = current_device_properties().multiProcessorCount;
  constexpr int kGroupCols = matvec::kGroupCols<scalar_t, kAlongK>;
  const MatvecPlan plan = plan_matvec(cols, kGroupCols, K, kAlongK, sms);
  OwnedTensor partial;
  if (plan.slices > 1) partial = OwnedTensor::empty(plan.slices * rows * cols, C.scalar_type());
  const matvec::Product<scalar_t> product{x.const_data_ptr<scalar_t>(),
                                          x.stride(0),
                                          x.stride(1),
                                          W.const_data_ptr<scalar_t>(),
                                          W.stride(kAlongK ? 1 : 0),
                                          C.mutable_data_ptr<scalar_t>(),
                                          C.stride(0),
                                          C.stride(1),
                                          rows,
                                          cols,
                                          K,
                                          static_cast<uint32_t>(plan.groups),
                                          plan.depth,
                                          partial.data_ptr<scalar_t>()};
  const auto address = reinterpret_cast<std::uintptr_t>(product.W);
  const int64_t sizes = (product.W_stride | (kAlongK ? K : cols)) * sizeof(scalar_t);
  const bool vectors = (address | sizes) % kVecBytes == 0;
  launch(vectors ? matvec::matvec_kernel<scalar_t, kAlongK, true>
                 : matvec::matvec_kernel<scalar_t, kAlongK, false>,
         static_cast<uint32_t>(plan.groups * plan.slices), matvec::kThreads, 0, product);
  if (plan.slices == 1) return;
  launch(matvec::sum_matvec_kernel<scalar_t>, static_cast<uint32_t>(ceil_div(rows * cols, 32)),
         matvec::kThreads, 0, product, static_cast<int>(plan.slices));
}

// C = A B if C has few rows or few columns, and the larger operand is dense along one dimension.
template <typename scalar_t>
bool matmul_matvec(const TensorView& A, const TensorView& B, const TensorView& C) {
  if (A.size(0) > kMatvecRows) {
    return B.size(1) <= kMatvecRows && matmul_matvec<scalar_t>(B.t(), A.t(), C.t());
  }
  if (B.stride(0) == 1 || B.size(0) == 1) {
    launch_matvec<scalar_t, true>(A, B, C);
  } else if (B.stride(1) == 1 || B.size(1) == 1) {
    launch_matvec<scalar_t, false>(A, B, C);
  } else {
    return false;
  }
  return true;
}

}  // namespace my_ops
