// fp4_matmul of two dense operands as one operator: quantizes both, multiplies, and returns what
// their gradients need.
#include "fp4_matmul/fp4_pair.h"

#include <ATen/ops/empty.h>

#include "common/device.h"
#include "common/register.h"
#include "fp4/fp4.h"
#include "fp4/fp4_tensors.h"
#include "fp4_matmul/fp4_factor.h"

namespace my_ops {
namespace {

struct Part {
  at::Tensor packed, scale, amax;  // amax: without elements in MXFP4

  std::optional<at::Tensor> optional_amax() const {
    return amax.dim() == 0 ? std::optional(amax) : std::nullopt;
  }
};

at::Tensor empty_amax(const at::Tensor& x, Fp4Format format) {
  const auto float32 = x.options().dtype(at::kFloat);
  return format == Fp4Format::nvfp4 ? at::empty({}, float32) : at::empty({0}, float32);
}

Part quantized(const at::Tensor& x, Fp4Format format) {
  if (format == Fp4Format::nvfp4) {
    const auto [packed, scale, amax] = fp4_quantize_two_level(x, "floor", "nearest", 0, false);
    return {packed, scale, amax};
  }
  const auto [packed, scale] = fp4_quantize(x, {}, "mxfp4", "floor", "nearest", 0, false);
  return {packed, scale, empty_amax(x, format)};
}

PairResults results(const at::Tensor& y, const Part& a, const Part& b) {
  return {y, a.packed, a.scale, a.amax, b.packed, b.scale, b.amax};
}

#ifdef MY_OPS_WITH_CUDA
Part empty_part(const at::Tensor& x, Fp4Format format) {
  const auto [packed, scale] = empty_fp4(x, format);
  return {packed, scale, empty_amax(x, format)};
}

PairPart view_of(const Part& part) {
  return {part.packed, part.scale, part.amax.dim() == 0 ? TensorView(part.amax) : TensorView()};
}

// Nothing where they are not quantized together.
std::optional<PairResults> forward_together(const at::Tensor& a, const at::Tensor& b,
                                            Fp4Format format, at::ScalarType dtype) {
  if (a.numel() == 0 || b.numel() == 0 || !a.is_contiguous()) return std::nullopt;
  const auto matrix = a.view({-1, a.size(-1)});
  if (!fp4_pair_fits_cuda(matrix, b, format)) return std::nullopt;
  const auto y = at::empty(with_last(a.sizes(), b.size(1)), a.options().dtype(dtype));
  const Part a_part = empty_part(a, format), b_part = empty_part(b.t(), format);
  const auto product = y.view({-1, y.size(-1)});
  if (!fp4_pair_cuda(matrix, b, format, view_of(a_part), view_of(b_part), product)) {
    return std::nullopt;
  }
  return results(y, a_part, b_part);
}
#endif

}  // namespace

PairResults fp4_matmul_pair_forward(const at::Tensor& a, const at::Tensor& b,
                                    const std::string& format_name, const std::string& dtype_name) {
  constexpr const char* kOp = "fp4_matmul";
  const auto format = fp4_format_named(kOp, format_name);
  [[maybe_unused]] const auto dtype = fp4_dtype_named(kOp, dtype_name);
  check_device(kOp, "a", a);
  check_fp4_dtype(kOp, "a", a);
  check_dense(kOp, "b", b, "a", a);
  MY_OPS_CHECK(a.dim() > 0, kOp, "a", "at least one dimension", "a tensor without dimensions");
  MY_OPS_CHECK(b.dim() == 2 && b.size(0) == a.size(-1), kOp, "b",
               c10::str("the shape [", a.size(-1), ", N]"), b.sizes());

  const OperatorGuard guard(a);
#ifdef MY_OPS_WITH_CUDA
  if (a.is_cuda()) {
    if (auto done = forward_together(a, b, format, dtype)) return *std::move(done);
  }
#endif
  const Part a_part = quantized(a, format), b_part = quantized(b.t(), format);
  const auto y = fp4_matmul_forward(a_part.packed, a_part.scale, a_part.optional_amax(), a.sizes(),
                                    false, b_part.packed, b_part.scale, b_part.optional_amax(),
                                    b.sizes(), true, format_name, dtype_name);
  return results(y, a_part, b_part);
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library,
            "fp4_matmul_pair_forward(Tensor a, Tensor b, str format, str dtype) -> "
            "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
            &fp4_matmul_pair_forward);
}

}  // namespace my_ops
