// fp4_matmul on the CPU: the factors' values in float32, multiplied as my_ops.matmul does.
#include "fp4/fp4.h"
#include "fp4_matmul/fp4_matmul.h"
#include "matmul/matmul.h"

namespace my_ops {
namespace {

// The values of a factor as [depth, outer].
at::Tensor values(const Fp4Factor& factor) {
  const auto* format = factor.format == Fp4Format::nvfp4 ? "nvfp4" : "mxfp4";
  const auto amax = factor.amax.defined() ? std::optional(factor.amax) : std::nullopt;
  const auto stored =
      fp4_dequantize(factor.packed, factor.scale, amax, factor.cols, format, "float32");
  return factor.contracts_cols ? stored.t() : stored;
}

}  // namespace

void fp4_matmul_packed_cpu(const Fp4Factor& a, const Fp4Factor& b, at::Tensor& y) {
  y.copy_(matmul_forward(values(a).t(), values(b), "ieee"));
}

void fp4_matmul_dense_cpu(const at::Tensor& x, const Fp4Factor& b, const at::Tensor& bias,
                          at::Tensor& y) {
  auto product = matmul_forward(x.to(at::kFloat), values(b), "ieee");
  y.copy_(bias.defined() ? product.add_(bias.to(at::kFloat)) : product);
}

void fp4_matmul_dense_two_cpu(const DenseProduct& first, const DenseProduct& second) {
  for (const DenseProduct* product : {&first, &second}) {
    auto y = product->y;
    fp4_matmul_dense_cpu(product->x, product->b, at::Tensor(), y);
  }
}

}  // namespace my_ops
