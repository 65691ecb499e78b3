// matmul in TF32 without a split pass: says how the kernel of tf32_gemm.cuh finds its operands,
// copies or transposes those that it cannot read, and launches it.
#include "matmul/matmul_tf32.h"

#include <utility>

#include "common/launch.cuh"
#include "common/sm90_tensor_map.h"
#include "common/vec.cuh"
#include "matmul/tf32_gemm.cuh"
#include "matmul/tf32_transpose.cuh"

namespace my_ops {
namespace {

using namespace tf32;

// Wide tiles read the fewest bytes for a product; small ones leave the fewest SMs idle: at n = 1024
// tiles of 64 x 128 take 13 us, of 128 x 128 in two slices 15, of 128 x 128 uncut 17.
using Small = Tile<1, 128, 8, 3>;
using Narrow = Tile<2, 128, 6, 1>;
using Middle = Tile<2, 192, 5, 1>;
using Wide = Tile<2, 256, 4, 1>;

template <class Tile>
constexpr bool is_shape(const Tf32Shape& shape) {
  return shape.rows == Tile::kRows && shape.cols == Tile::kCols &&
         shape.max_slices == Tile::kMaxSlices;
}
static_assert(is_shape<Small>(kTf32Shapes[0]));
static_assert(is_shape<Narrow>(kTf32Shapes[1]));
static_assert(is_shape<Middle>(kTf32Shapes[2]));
static_assert(is_shape<Wide>(kTf32Shapes[3]));

// An operand [rows, K] that runs along K, or along its rows, in lines `stride` apart.
struct Operand {
  const float* data;
  int64_t rows, K, stride;
  bool along_k;
  OwnedTensor copy;  // defined where one was needed

  bool map(CUtensorMap& map, int tile_rows) const {
    return along_k ? encode_tf32_tensor_map(map, data, rows, K, stride, tile_rows)
                   : encode_tf32_tensor_map(map, data, K, rows, stride, kDepth);
  }
};

// Whether the copy engine can read the matrix by its rows: whole vectors, none of them twice.
bool has_readable_rows(const TensorView& matrix) {
  return matrix.stride(1) == 1 && matrix.stride(0) % kVecElements<float> == 0 &&
         matrix.stride(0) >= matrix.size(1) && aligned_to_vec(matrix.const_data_ptr());
}

Operand make_operand(const TensorView& matrix) {
  const int64_t rows = matrix.size(0), K = matrix.size(1);
  const auto* const data = matrix.const_data_ptr<float>();
  if (has_readable_rows(matrix)) return {data, rows, K, matrix.stride(0), true, {}};
  if (has_readable_rows(matrix.t())) return {data, rows, K, matrix.stride(1), false, {}};
  OwnedTensor copy = OwnedTensor::contiguous_copy(matrix);
  const auto* const copied = copy.data_ptr<float>();
  return {copied, rows, K, K, true, std::move(copy)};
}

void transpose(Operand& operand) {
  OwnedTensor copy = OwnedTensor::empty(operand.rows * operand.K, ScalarType::Float);
  const int64_t tiles =
      ceil_div(operand.K, kTransposeTile) * ceil_div(operand.rows, kTransposeTile);
  launch(transpose_kernel, static_cast<uint32_t>(tiles), kTransposeThreads, 0, operand.data,
         operand.stride, copy.data_ptr<float>(), static_cast<int>(operand.K),
         static_cast<int>(operand.rows));
  const auto* const copied = copy.data_ptr<float>();
  operand = {copied, operand.rows, operand.K, operand.K, true, std::move(copy)};
}

template <class Tile, bool kAlongRows, bool kTransposed>
bool launch_product(const Operand& A, const Operand& B, float* C, const Tf32Plan& plan) {
  const auto kernel = matmul_tf32_kernel<Tile, kAlongRows, kTransposed>;
  Product product;
  if (!runs_wgmma(kernel, Tile::kThreads) || !A.map(product.A, Tile::kRows) ||
      !B.map(product.B, Tile::kCols)) {
    return false;
  }
  product.M = static_cast<int>(A.rows);
  product.N = static_cast<int>(B.rows);
  product.k_steps = static_cast<int>(ceil_div(A.K, 2 * kDepth));
  product.row_tiles = ceil_div(product.M, Tile::kRows);
  product.col_tiles = ceil_div(product.N, Tile::kCols);
  product.slices = plan.slices;
  product.C = C;
  product.stride = kTransposed ? A.rows : B.rows;
  const int64_t blocks = int64_t{product.row_tiles} * product.col_tiles * plan.slices;
  check_blocks("matmul", blocks);
  launch_with({static_cast<unsigned>(plan.slices), true}, kernel, static_cast<uint32_t>(blocks),
              Tile::kThreads, Tile::kSharedBytes, product);
  return true;
}

template <class Tile>
bool multiply(Operand& A, Operand& B, float* C, const Tf32Plan& plan) {
  if (A.along_k && B.along_k) return launch_product<Tile, false, false>(A, B, C, plan);
  // The second operand is the one that must run along K.
  if (A.along_k) return launch_product<Tile, true, true>(B, A, C, plan);
  if (!B.along_k) transpose(B);
  return launch_product<Tile, true, false>(A, B, C, plan);
}

}  // namespace

bool matmul_tf32(const TensorView& A, const TensorView& B, const TensorView& C,
                 const Tf32Plan& plan) {
  Operand a = make_operand(A), b = make_operand(B.t());
  float* const c = C.mutable_data_ptr<float>();
  switch (plan.shape) {
    case 0:
      return multiply<Small>(a, b, c, plan);
    case 1:
      return multiply<Narrow>(a, b, c, plan);
    case 2:
      return multiply<Middle>(a, b, c, plan);
    default:
      return multiply<Wide>(a, b, c, plan);
  }
}

}  // namespace my_ops
