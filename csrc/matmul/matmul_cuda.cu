// matmul on CUDA: reads both operands through their strides, chooses a tile and a split of K, and
// launches the kernels of simt_gemm.cuh.
#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>

#include <limits>
#include <utility>

#include "common/launch.cuh"
#include "matmul/matmul.h"
#include "matmul/matmul_wgmma.h"
#include "matmul/simt_gemm.cuh"
#include "matmul/simt_plan.h"

namespace my_ops {
namespace {

using simt::Copy;

// The tiles that plan_simt chooses from, with the rates it goes by: measured on an H200, TFLOP/s
// over the 65 (float64: 33) of bare FMAs.
//
// large: 16 x 8 a thread needs 6 shared loads for 128 FMAs, where 8 x 8 needs 4 for 64; four stages
//        and four groups of copies a tile took NT from 45 to 50 TFLOP/s, the others from 49 to 51.
// small: more blocks for small C, three on an SM.
// wide:  for C with few rows (or columns, transposed): bound by reading the other operand.
template <typename scalar_t>
struct Tiles;

template <>
struct Tiles<float> {
  using Large = simt::Tile<float, 128, 256, 16, 16, 8, 4, 1, 4>;
  using Small = simt::Tile<float, 64, 64, 16, 8, 4, 4, 3, 2>;
  using Wide = simt::Tile<float, 16, 256, 16, 4, 8, 4, 3, 2>;
};

template <>
struct Tiles<double> {
  using Large = simt::Tile<double, 128, 128, 8, 8, 8, 4, 1, 2>;
  using Small = simt::Tile<double, 64, 64, 8, 8, 4, 4, 3, 2>;
  using Wide = simt::Tile<double, 16, 128, 8, 4, 4, 4, 3, 2>;
};

template <class Tile>
constexpr SimtTileShape shape_of(SimtTile tile, double rate_alone, double rate_full) {
  return {tile, Tile::kRows, Tile::kCols, Tile::kBlocksPerSM, rate_alone, rate_full};
}

template <typename scalar_t>
constexpr SimtTileShape kShapes[] = {
    shape_of<typename Tiles<scalar_t>::Large>(SimtTile::large, 0.78, 0.78),
    shape_of<typename Tiles<scalar_t>::Small>(SimtTile::small, 0.58, 0.66),
    shape_of<typename Tiles<scalar_t>::Wide>(SimtTile::wide, 0.40, 0.55),
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
void launch_tile(const Readable& A, const Readable& B, const SimtPlan& plan,
                 simt::Product<typename Tile::scalar_t> product, const at::TensorOptions& options) {
  using scalar_t = typename Tile::scalar_t;
  at::Tensor partial;
  if (plan.cut_tiles > 0) {
    partial = at::empty({plan.slices, plan.cut_tiles, Tile::kRows, Tile::kCols}, options);
    product.partial = partial.mutable_data_ptr<scalar_t>();
  }
  const auto blocks = static_cast<uint32_t>(plan.whole_tiles + plan.cut_tiles * plan.slices);
  launch(kernel_for<Tile>(A, B), blocks, Tile::kThreads, Tile::kSharedBytes, product);
  if (plan.cut_tiles == 0) return;
  constexpr int kStripsPerTile = Tile::kRows * Tile::kCols / Tile::kVector;
  launch(simt::sum_slices_kernel<Tile>,
         static_cast<uint32_t>(plan.cut_tiles * (kStripsPerTile / simt::kSumStrips)),
         dim3(simt::kSumStrips, simt::kSumParts), 0, product);
}

template <typename scalar_t>
simt::Operand<scalar_t> operand(const Readable& view) {
  return {view.tensor.const_data_ptr<scalar_t>(), static_cast<uint32_t>(view.stride_bytes)};
}

// Where `only_if` is defined and holds 0, C is left as it is.
template <typename scalar_t>
void matmul_simt(const at::Tensor& A, const at::Tensor& B, const at::Tensor& C,
                 const at::Tensor& only_if) {
  const int64_t M = A.size(0), K = A.size(1), N = B.size(1);
  const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const SimtPlan plan = plan_simt(kShapes<scalar_t>, M, N, K, sms);
  Readable a = make_readable(A), b = make_readable(B.t());
  simt::Product<scalar_t> product{operand<scalar_t>(a),
                                  operand<scalar_t>(b),
                                  C.mutable_data_ptr<scalar_t>(),
                                  N,
                                  1,
                                  M,
                                  N,
                                  K,
                                  plan.whole_tiles,
                                  plan.cut_tiles,
                                  plan.slices,
                                  nullptr,
                                  only_if.defined() ? only_if.const_data_ptr<int>() : nullptr};
  if (plan.transposed) {
    std::swap(a, b);
    std::swap(product.A, product.B);
    std::swap(product.M, product.N);
    std::swap(product.row_stride, product.col_stride);
  }
  using Tile = Tiles<scalar_t>;
  switch (plan.tile) {
    case SimtTile::large:
      return launch_tile<typename Tile::Large>(a, b, plan, product, C.options());
    case SimtTile::small:
      return launch_tile<typename Tile::Small>(a, b, plan, product, C.options());
    case SimtTile::wide:
      return launch_tile<typename Tile::Wide>(a, b, plan, product, C.options());
  }
}

}  // namespace

void matmul_cuda(const at::Tensor& A, const at::Tensor& B, const at::Tensor& C,
                 std::string_view precision) {
  at::Tensor unfit;
  if (A.scalar_type() == at::kFloat && matmul_wgmma(A, B, C, precision, unfit) &&
      !unfit.defined()) {
    return;
  }
  AT_DISPATCH_FLOATING_TYPES(A.scalar_type(), "matmul",
                             [&] { matmul_simt<scalar_t>(A, B, C, unfit); });
}

}  // namespace my_ops
