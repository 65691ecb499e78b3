// fp4_matmul on the CPU: the factors' values in float32, multiplied by ATen.
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "fp4/fp4.h"
#include "fp4_matmul/fp4_matmul.h"

namespace my_ops {
namespace {

// The values of a factor as [depth, outer].
at::Tensor values(const Fp4Factor& factor) {
  const auto* format = factor.format == Fp4Format::nvfp4 ? "nvfp4" : "mxfp4";
  const auto stored = fp4_dequantize(factor.packed, factor.scale, factor.amax, factor.cols, format,
                                     "float32");
  return factor.contracts_cols ? stored.t() : stored;
}

}  // namespace

void fp4_matmul_packed_cpu(const Fp4Factor& a, const Fp4Factor& b, at::Tensor& y) {
  y.copy_(at::mm(values(a).t(), values(b)));
}

void fp4_matmul_dense_cpu(const at::Tensor& x, const Fp4Factor& b,
                          const std::optional<at::Tensor>& bias, at::Tensor& y) {
  const auto wide_x = x.to(at::kFloat);
  y.copy_(bias ? at::addmm(bias->to(at::kFloat), wide_x, values(b)) : at::mm(wide_x, values(b)));
}

}  // namespace my_ops
