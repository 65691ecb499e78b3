// fp4_matmul and fp4_linear on CUDA: which kernel gets a product, as the table in fp4_matmul.h
// says, and the launch of the one that takes any (fp4_matmul_kernel.cuh).
#include "common/launch.cuh"
#include "fp4_matmul/fp4_fused.h"
#include "fp4_matmul/fp4_gemv.h"
#include "fp4_matmul/fp4_matmul_kernel.cuh"
#include "fp4_matmul/fp4_operands.cuh"
#include "fp4_matmul/fp4_outer.h"
#include "fp4_matmul/fp4_product.h"
#include "fp4_matmul/fp4_stream.h"
#include "fp4_matmul/fp4_wide.h"

namespace my_ops {
namespace {

ByteRows byte_rows(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes) {
  const auto bits = reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_bytes);
  const int unit_bytes = bits % 16 == 0 ? 16 : (bits % 4 == 0 ? 4 : 1);
  return {static_cast<const uint8_t*>(data), rows, row_bytes, stride_bytes, unit_bytes};
}

template <Major kMajor>
PackedOperand<kMajor> packed_operand(const Fp4FactorView& factor) {
  const int64_t code_bytes = factor.packed.size(-1), scale_bytes = factor.scale.size(-1);
  return {byte_rows(factor.packed.const_data_ptr(), factor.rows, code_bytes, code_bytes),
          byte_rows(factor.scale.const_data_ptr(), factor.rows, scale_bytes, scale_bytes),
          factor.amax.const_data_ptr<float>(), factor.format};
}

// x [M, K] as it lies in memory: rows of K elements (Major::depth) or rows of M (Major::outer).
template <Major kMajor>
DenseOperand<kMajor> dense_operand(const TensorView& x) {
  const auto stored = kMajor == Major::depth ? x : x.t();
  const int64_t element_bytes = x.element_size();
  return {byte_rows(x.const_data_ptr(), stored.size(0), stored.size(1) * element_bytes,
                    stored.stride(0) * element_bytes),
          dense_type(x)};
}

template <Major kMajor>
struct MajorTag {
  static constexpr Major value = kMajor;
};

template <typename Function>
void with_major(bool depth, Function&& function) {
  depth ? function(MajorTag<Major::depth>{}) : function(MajorTag<Major::outer>{});
}

template <typename Tile, typename OperandA, typename OperandB>
void launch_tile(const OperandA& a, const OperandB& b, const ProductOutput& out) {
  const int64_t blocks = ceil_div(out.M, int64_t{Tile::kBlockM}) * blocks_n<Tile>(out.N);
  check_blocks("fp4_matmul", blocks);
  const bool overlapping = out.only_if_any.flags != nullptr;  // most often there is nothing to do
  launch_with({1, overlapping}, fp4_matmul_kernel<Tile, OperandA, OperandB>,
              static_cast<unsigned>(blocks), Tile::kThreads,
              ProductLayout<Tile, OperandA, OperandB>::shared_bytes(a, b), a, b, out);
}

template <typename OperandA, typename OperandB>
void launch_product(const OperandA& a, const OperandB& b, int64_t K, const TensorView& y,
                    const TensorView& bias, const Misfits& only_if_any = {}) {
  auto out = product_output(y, K, bias);
  out.only_if_any = only_if_any;
  const cudaDeviceProp& device = current_device_properties();
  const auto large_bytes = ProductLayout<LargeTile, OperandA, OperandB>::shared_bytes(a, b);
  if (use_large_tile(out.M, out.N, large_bytes, device.sharedMemPerBlockOptin,
                     device.multiProcessorCount)) {
    launch_tile<LargeTile>(a, b, out);
  } else {
    launch_tile<SmallTile>(a, b, out);
  }
}

}  // namespace

void fp4_matmul_packed_cuda(const Fp4FactorView& a, const Fp4FactorView& b, const TensorView& y) {
  if (fp4_fused_packed(a, b, y)) return;
  with_major(a.contracts_cols, [&](auto major_a) {
    with_major(b.contracts_cols, [&](auto major_b) {
      launch_product(packed_operand<major_a.value>(a), packed_operand<major_b.value>(b), a.depth(),
                     y, TensorView());
    });
  });
}

void fp4_matmul_dense_cuda(const TensorView& x, const Fp4FactorView& b, const TensorView& bias,
                           const TensorView& y) {
  if (fp4_gemv(x, b, bias, y) || fp4_stream(x, b, bias, y) || fp4_outer(x, b, bias, y) ||
      fp4_fused_dense(x, b, bias, y)) {
    return;
  }
  // Where flags come back y may be wrong, and is computed again below where one is set.
  OwnedTensor misfits;
  if (fp4_wide(x, b, bias, y, misfits) && !misfits.defined()) return;
  const Misfits only_if_any{misfits.data_ptr<int>(),
                            misfits.defined() ? static_cast<int>(misfits.view().numel()) : 0};
  with_major(x.stride(1) == 1, [&](auto major_x) {
    with_major(b.contracts_cols, [&](auto major_b) {
      launch_product(dense_operand<major_x.value>(x), packed_operand<major_b.value>(b), b.depth(),
                     y, bias, only_if_any);
    });
  });
}

void fp4_matmul_dense_two_cuda(const DenseProductView& first, const DenseProductView& second) {
  if (fp4_wide_two(first, second)) return;
  for (const DenseProductView* product : {&first, &second}) {
    fp4_matmul_dense_cuda(product->x, product->b, TensorView(), product->y);
  }
}

}  // namespace my_ops
