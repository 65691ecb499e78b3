// matmul on CUDA: which kernel gets a product, in the order of matmul.h. float64:
// matmul_float64_cuda.cu. Tensor-core precisions on Hopper: matmul_wgmma_cuda.cu. "ieee" float32,
// and what those do not take, here: matvec.cuh for at most four rows or columns of C, else
// simt_gemm.cuh, with a tile and a split of K by simt_plan.h.
#include <algorithm>
#include <limits>
#include <utility>

#include "common/launch.cuh"
#include "matmul/matmul.h"
#include "matmul/matmul_float64.h"
#include "matmul/matmul_wgmma.h"
#include "matmul/matvec_launch.cuh"
#include "matmul/simt_gemm.cuh"
#include "matmul/simt_launch.cuh"
#include "matmul/simt_pad.cuh"
#include "matmul/simt_plan.h"

namespace my_ops {
namespace {

using simt::Copy;

// large: 16 x 8 sums a thread take 6 shared loads for 128 FMAs, where 8 x 8 take 4 for 64. Four
//        stages and four groups of copies brought products whose operands both run along K from 45
//        to 50 TFLOP/s, others from 49 to 51.
// small: more blocks for a small C, four on an SM.
// wide:  for C with few rows (or columns, transposed).
using Large = simt::Tile<float, 128, 256, 16, 16, 8, 4, 1, 4>;
using Small = simt::Tile<float, 64, 64, 16, 8, 4, 4, 4, 2>;
using Wide = simt::Tile<float, 16, 256, 16, 4, 8, 4, 3, 2>;

static_assert(tile_is<Large>(kFloat32Shapes[0], SimtTile::large));
static_assert(tile_is<Small>(kFloat32Shapes[1], SimtTile::small));
static_assert(tile_is<Wide>(kFloat32Shapes[2], SimtTile::wide));

// A matrix [rows, K] as the kernel reads it. `copy` is defined where one was needed.
struct Readable {
  OwnedTensor copy;
  TensorView tensor;
  int64_t stride_bytes;
  bool along_k;
  bool vectors;
};

// Describes the matrix in `view`. False where neither of its dimensions is dense, or the stride of
// the other one is too long.
bool readable(const TensorView& matrix, Readable& view) {
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

// If the matrix runs along its rows, but not in aligned vectors: makes a copy of it that does.
void pad(Readable& view, int64_t rows, int64_t K) {
  if (view.along_k || view.vectors) return;
  const int64_t padded = ceil_div(rows, kVecElements<float>) * kVecElements<float>;
  OwnedTensor copy = OwnedTensor::empty(padded * K, ScalarType::Float);
  launch(simt::pad_rows_kernel<float>,
         static_cast<uint32_t>(ceil_div(padded / kVecElements<float> * K, simt::kPadThreads)),
         simt::kPadThreads, 0, view.tensor.const_data_ptr<float>(),
         static_cast<int64_t>(view.stride_bytes / sizeof(float)), copy.data_ptr<float>(), rows, K);
  view.copy = std::move(copy);
  view.tensor = view.copy.view();
  view.stride_bytes = padded * static_cast<int64_t>(sizeof(float));
  view.vectors = true;
}

// The matrix itself if the kernel can read its strides, else a copy. Rows that are too long for a
// 32-bit stride are copied to run along M or N.
Readable make_readable(const TensorView& matrix) {
  Readable view;
  if (!readable(matrix, view)) {
    const auto size = static_cast<int64_t>(matrix.element_size());
    const bool long_rows = matrix.size(1) > std::numeric_limits<uint32_t>::max() / size;
    view.copy = OwnedTensor::contiguous_copy(long_rows ? matrix.t() : matrix);
    readable(long_rows ? view.copy.view().t() : view.copy.view(), view);
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
                 const simt::Product<float>& product) {
  launch_plan<Tile>(plan, kernel_for<Tile>(A, B), ScalarType::Float, product);
}

simt::Operand<float> operand(const Readable& view) {
  return {view.tensor.const_data_ptr<float>(), static_cast<uint32_t>(view.stride_bytes)};
}

// C = A B. Where `only_if` points to a 0, C is left as it is: the product was done already.
void matmul_float32(const TensorView& A, const TensorView& B, const TensorView& C,
                    const int* only_if) {
  if (only_if == nullptr && matmul_matvec<float>(A, B, C)) return;
  const int64_t M = A.size(0), K = A.size(1), N = B.size(1);
  const int sms = current_device_properties().multiProcessorCount;
  const SimtPlan plan = plan_simt(kFloat32Shapes, M, N, K, sms, adds_in_clusters<Large>());
  Readable a = make_readable(A), b = make_readable(B.t());
  // With loads of single elements the product takes 5 to 12 % longer (n = 4099), a copy into
  // vectors 1.4 %. A fallback, which most likely is not due, makes none.
  if (only_if == nullptr && std::min(M, N) >= 3072) {
    pad(a, M, K);
    pad(b, N, K);
  }
  simt::Product<float> product{{C.mutable_data_ptr<float>(), N, 1, M, N, K, plan.whole_tiles,
                                plan.cut_tiles, plan.slices, plan.clustered, nullptr, only_if},
                               operand(a),
                               operand(b)};
  if (plan.transposed) {
    std::swap(a, b);
    std::swap(product.A, product.B);
    std::swap(product.M, product.N);
    std::swap(product.row_stride, product.col_stride);
  }
  switch (plan.tile) {
    case SimtTile::large:
      return launch_tile<Large>(a, b, plan, product);
    case SimtTile::small:
      return launch_tile<Small>(a, b, plan, product);
    case SimtTile::wide:
      return launch_tile<Wide>(a, b, plan, product);
  }
}

}  // namespace

void matmul_cuda(const TensorView& A, const TensorView& B, const TensorView& C,
                 std::string_view precision) {
  if (A.scalar_type() == ScalarType::Double) return matmul_float64(A, B, C);
  OwnedTensor unfit;
  if (matmul_wgmma(A, B, C, precision, unfit) && !unfit.defined()) return;
  matmul_float32(A, B, C, unfit.data_ptr<int>());
}

}  // namespace my_ops
