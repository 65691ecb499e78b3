// matmul on CUDA: reads both operands through their strides, chooses a tile and a split of K, and
// launches the kernels of simt_gemm.cuh.
#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>

#include <limits>

#include "common/checks.h"
#include "common/launch.cuh"
#include "matmul/matmul.h"
#include "matmul/simt_gemm.cuh"
#include "matmul/simt_plan.h"

namespace my_ops {
namespace {

using simt::Copy;

// The tile shapes that simt_plan.h chooses from. Measured on an H200: see there.
template <typename scalar_t>
struct Tiles;

template <>
struct Tiles<float> {
  using Large = simt::Tile<float, 128, 256, 16, 16, 8, 4, 1, 4>;
  using Small = simt::Tile<float, 64, 64, 16, 8, 4, 4, 3, 2>;
};

template <>
struct Tiles<double> {
  using Large = simt::Tile<double, 128, 128, 8, 8, 8, 4, 1, 2>;
  using Small = simt::Tile<double, 64, 64, 8, 8, 4, 4, 3, 2>;
};

// A matrix [rows, K] as the kernel reads it. `tensor` keeps a copy alive where one was needed.
struct Readable {
  at::Tensor tensor;
  int64_t stride_bytes;
  bool along_k;
  bool vectors;
};

// Whether one of the matrix's two dimensions is dense; sets the stride of the other one.
bool readable(const at::Tensor& matrix, Readable& view) {
  const int64_t rows = matrix.size(0), K = matrix.size(1);
  // The stride of a dimension of size one is never used, whatever the tensor says.
  view.along_k = K == 1 || matrix.stride(1) == 1;
  if (!view.along_k && rows != 1 && matrix.stride(0) != 1) return false;
  const int64_t stride = view.along_k ? (rows == 1 ? 0 : matrix.stride(0)) : matrix.stride(1);
  const int64_t size = static_cast<int64_t>(matrix.element_size());
  if (stride > std::numeric_limits<uint32_t>::max() / size) return false;
  view.stride_bytes = stride * size;
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.const_data_ptr());
  view.vectors = view.along_k || (address | view.stride_bytes | (rows * size)) % kVecBytes == 0;
  view.tensor = matrix;
  return true;
}

// The matrix itself if the kernel can read its strides, else a copy. Rows that are too long for a
// 32-bit stride are copied to run along M or N.
Readable make_readable(const at::Tensor& matrix) {
  Readable view;
  if (!readable(matrix, view)) {
    const auto size = static_cast<int64_t>(matrix.element_size());
    const bool long_rows = matrix.size(1) > std::numeric_limits<uint32_t>::max() / size;
    readable(long_rows ? matrix.t().contiguous().t() : matrix.contiguous(), view);
  }
  return view;
}

template <class Tile>
auto kernel_for(const Readable& A, const Readable& B) {
  using simt::matmul_simt_kernel;
  constexpr Copy kK = Copy::kAlongK, kElements = Copy::kAlongRows, kVectors = Copy::kVectorsOfRows;
  const bool vectors = A.vectors && B.vectors;
  if (A.along_k && B.along_k) return matmul_simt_kernel<Tile, kK, kK>;
  if (A.along_k) {
    return vectors ? matmul_simt_kernel<Tile, kK, kVectors>
                   : matmul_simt_kernel<Tile, kK, kElements>;
  }
  if (B.along_k) {
    return vectors ? matmul_simt_kernel<Tile, kVectors, kK>
                   : matmul_simt_kernel<Tile, kElements, kK>;
  }
  return vectors ? matmul_simt_kernel<Tile, kVectors, kVectors>
                 : matmul_simt_kernel<Tile, kElements, kElements>;
}

template <class Tile>
void launch_tile(const Readable& A, const Readable& B, typename Tile::scalar_t* C, int64_t M,
                 int64_t N, int64_t K, int splits) {
  using scalar_t = typename Tile::scalar_t;
  const auto operand = [](const Readable& view) {
    return simt::Operand<scalar_t>{view.tensor.const_data_ptr<scalar_t>(),
                                   static_cast<uint32_t>(view.stride_bytes)};
  };
  const int64_t tiles = ceil_div(M, int64_t{Tile::kRows}) * ceil_div(N, int64_t{Tile::kCols});
  const dim3 grid(static_cast<uint32_t>(tiles), static_cast<uint32_t>(splits));
  launch(kernel_for<Tile>(A, B), grid, Tile::kThreads, Tile::kSharedBytes, operand(A), operand(B),
         C, M, N, K);
}

template <typename scalar_t>
void matmul_simt(const at::Tensor& A, const at::Tensor& B, const at::Tensor& C) {
  const int64_t M = A.size(0), K = A.size(1), N = B.size(1);
  const Readable a = make_readable(A), b = make_readable(B.t());
  const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const SimtPlan plan = plan_simt(M, N, K, sms);
  scalar_t* const result = C.mutable_data_ptr<scalar_t>();
  at::Tensor partial;
  if (plan.splits > 1) partial = at::empty({plan.splits, M, N}, C.options());
  scalar_t* const out = plan.splits > 1 ? partial.mutable_data_ptr<scalar_t>() : result;
  switch (plan.tile) {
    case SimtTile::large:
      launch_tile<typename Tiles<scalar_t>::Large>(a, b, out, M, N, K, plan.splits);
      break;
    case SimtTile::small:
      launch_tile<typename Tiles<scalar_t>::Small>(a, b, out, M, N, K, plan.splits);
      break;
  }
  if (plan.splits > 1) {
    constexpr int kThreads = 256;
    const int64_t blocks = ceil_div(M * N, int64_t{kThreads});
    launch(simt::sum_splits_kernel<scalar_t>, static_cast<uint32_t>(blocks), kThreads, 0, out,
           result, M * N, plan.splits);
  }
}

}  // namespace

void matmul_cuda(const at::Tensor& A, const at::Tensor& B, const at::Tensor& C,
                 std::string_view precision) {
  MY_OPS_CHECK(precision == "ieee" || A.scalar_type() == at::kDouble, "matmul", "precision",
               "\"ieee\", the only one available for float32 on this device", "\"", precision,
               "\"");
  AT_DISPATCH_FLOATING_TYPES(A.scalar_type(), "matmul", [&] { matmul_simt<scalar_t>(A, B, C); });
}

}  // namespace my_ops
