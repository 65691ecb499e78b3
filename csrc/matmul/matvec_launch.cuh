// Launches matvec where it is the right kernel. Host side of .cu files, needs no torch.
#pragma once

#include <algorithm>

#include "common/launch.cuh"
#include "common/tensor_view.h"
#include "matmul/matvec.cuh"

namespace my_ops {

// C [rows, cols] = x [rows, K] W [K, cols], C in any strides.
template <typename scalar_t, bool kAlongK, bool kVectors>
void launch_matvec(const TensorView& x, const TensorView& W, const TensorView& C) {
  using Block = matvec::Block<scalar_t, kAlongK, kVectors>;
  const int64_t rows = x.size(0), K = x.size(1), cols = W.size(1);
  // 1024 threads for each SM have enough loads in flight.
  const int64_t blocks = 1024 / Block::kThreads * current_device_properties().multiProcessorCount;
  const MatvecPlan plan = plan_matvec(cols, Block::kCols, K, Block::kUnit, blocks);
  // A short K leaves nothing to do for the last warps.
  const auto threads = static_cast<unsigned>(
      kAlongK ? std::min<int64_t>(Block::kThreads, plan.depth / Block::kUnit * 32)
              : Block::kThreads);
  const auto kernel = rows == 1 ? matvec::matvec_kernel<scalar_t, kAlongK, kVectors, 1>
                                : matvec::matvec_kernel<scalar_t, kAlongK, kVectors, kMatvecRows>;
  const bool overlaps = runs_clusters(kernel);
  const bool clustered = overlaps && plan.slices > 1 && plan.slices <= kMatvecCluster;
  OwnedTensor partial;
  if (plan.slices > 1 && !clustered) {
    partial = OwnedTensor::empty(plan.slices * rows * cols, C.scalar_type());
  }
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
                                          plan.depth,
                                          static_cast<int>(plan.slices),
                                          clustered,
                                          partial.data_ptr<scalar_t>()};
  LaunchOptions options;
  if (clustered) options.cluster = static_cast<unsigned>(plan.slices);
  launch_with(options, kernel, static_cast<uint32_t>(plan.groups * plan.slices), threads, 0,
              product);
  if (!partial.defined()) return;
  launch_with({1, overlaps}, matvec::sum_matvec_kernel<scalar_t>,
              static_cast<uint32_t>(ceil_div(rows * cols, 32)), 32 * matvec::kSumWarps, 0, product);
}

// Whether all rows of `matrix` along its dense dimension `dim` are whole aligned 16-byte vectors.
inline bool rows_of_vectors(const TensorView& matrix, int dim) {
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.const_data_ptr());
  const int64_t stride = matrix.size(1 - dim) == 1 ? 0 : matrix.stride(1 - dim);
  return (matrix.stride(dim) == 1 || matrix.size(dim) == 1) &&
         (address | (stride | matrix.size(dim)) * matrix.element_size()) % kVecBytes == 0;
}

// C = A B if C has few rows or few columns, and the larger operand is dense along one dimension.
template <typename scalar_t>
bool matmul_matvec(const TensorView& A, const TensorView& B, const TensorView& C) {
  if (A.size(0) > kMatvecRows) {
    return B.size(1) <= kMatvecRows && matmul_matvec<scalar_t>(B.t(), A.t(), C.t());
  }
  if (B.stride(0) == 1 || B.size(0) == 1) {
    const bool vectors = rows_of_vectors(B, 0) && rows_of_vectors(A, 1);
    vectors ? launch_matvec<scalar_t, true, true>(A, B, C)
            : launch_matvec<scalar_t, true, false>(A, B, C);
  } else if (B.stride(1) == 1 || B.size(1) == 1) {
    rows_of_vectors(B, 1) ? launch_matvec<scalar_t, false, true>(A, B, C)
                          : launch_matvec<scalar_t, false, false>(A, B, C);
  } else {
    return false;
  }
  return true;
}

}  // namespace my_ops
