// matmul of float64 on CUDA: matvec.cuh for at most four rows or columns of C, else dmma_gemm.cuh,
// which reads both operands in any strides, with a tile and a split of K by simt_plan.h.
#include <utility>

#include "common/launch.cuh"
#include "matmul/dmma_gemm.cuh"
#include "matmul/matmul_float64.h"
#include "matmul/matvec_launch.cuh"
#include "matmul/simt_launch.cuh"
#include "matmul/simt_plan.h"

namespace my_ops {
namespace {

// Large: 51 to 56 TFLOP/s of 67 on an H200 at n = 4096; loading fragments one step ahead gives 20 %
//        of that. Three stages are what GPUs of 8.6, 8.9 and 12.0 have room for; four are no
//        faster.
// Small: for a C too small to fill the GPU with Large. Two blocks on an SM reach 54 TFLOP/s; three,
//        which leave no registers for a second set of fragments, reach 47.
// Wide:  for C with few rows (or columns, transposed): bound by reading the other operand.
using Large = dmma::Tile<128, 128, 64, 32, 3, 1>;
using Small = dmma::Tile<64, 64, 32, 32, 4, 2>;
using Wide = dmma::Tile<16, 128, 16, 32, 4, 3>;

static_assert(tile_is<Large>(kFloat64Shapes[0], SimtTile::large));
static_assert(tile_is<Small>(kFloat64Shapes[1], SimtTile::small));
static_assert(tile_is<Wide>(kFloat64Shapes[2], SimtTile::wide));

// A matrix [rows, K] as the kernel reads it.
dmma::Operand operand(const TensorView& matrix) {
  return {matrix.const_data_ptr<double>(), matrix.stride(0), matrix.stride(1)};
}

// Whether 16-byte copies can bring `matrix` as the kernel's A (dense along its rows) or B (along
// K). The stride of a dimension of size one is never used, whatever the tensor says.
bool copies_in_vectors(const TensorView& matrix, bool as_a) {
  const int dense = as_a ? 0 : 1, other = 1 - dense;
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.const_data_ptr());
  const int64_t stride = matrix.size(other) == 1 ? 0 : matrix.stride(other);
  const int64_t bytes = (stride | matrix.size(dense)) * static_cast<int64_t>(sizeof(double));
  return matrix.stride(dense) == 1 && (address | bytes) % kVecBytes == 0;
}

template <class Tile>
void launch_tile(const TensorView& A, const TensorView& Bt, const SimtPlan& plan,
                 const simt::Output<double>& output) {
  using dmma::matmul_dmma_kernel;
  const bool vectors_a = copies_in_vectors(A, true), vectors_b = copies_in_vectors(Bt, false);
  const auto kernel = vectors_a ? (vectors_b ? matmul_dmma_kernel<Tile, true, true>
                                             : matmul_dmma_kernel<Tile, true, false>)
                                : (vectors_b ? matmul_dmma_kernel<Tile, false, true>
                                             : matmul_dmma_kernel<Tile, false, false>);
  launch_plan<Tile>(plan, kernel, ScalarType::Double, output, operand(A), operand(Bt));
}

}  // namespace

void matmul_float64(const TensorView& A, const TensorView& B, const TensorView& C) {
  if (matmul_matvec<double>(A, B, C)) return;
  const int64_t M = A.size(0), K = A.size(1), N = B.size(1);
  const int sms = current_device_properties().multiProcessorCount;
  const SimtPlan plan = plan_simt(kFloat64Shapes, M, N, K, sms, adds_in_clusters<Large>());
  TensorView a = A, b = B.t();
  simt::Output<double> output{C.mutable_data_ptr<double>(),
                              N,
                              1,
                              M,
                              N,
                              K,
                              plan.whole_tiles,
                              plan.cut_tiles,
                              plan.slices,
                              plan.clustered,
                              nullptr,
                              nullptr};
  // A square tile computes C^T = B^T A^T as well as C: what has more operands copied in vectors.
  const int as_is = copies_in_vectors(a, true) + copies_in_vectors(b, false);
  const int swapped = copies_in_vectors(b, true) + copies_in_vectors(a, false);
  if (plan.tile == SimtTile::wide ? plan.transposed : swapped > as_is) {
    std::swap(a, b);
    std::swap(output.M, output.N);
    std::swap(output.row_stride, output.col_stride);
  }
  switch (plan.tile) {
    case SimtTile::large:
      return launch_tile<Large>(a, b, plan, output);
    case SimtTile::small:
      return launch_tile<Small>(a, b, plan, output);
    case SimtTile::wide:
      return launch_tile<Wide>(a, b, plan, output);
  }
}

}  // namespace my_ops
