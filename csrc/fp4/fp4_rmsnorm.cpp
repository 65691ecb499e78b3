// rmsnorm_fp4_quantize: argument checks, one kernel where rows fit it, else the two operators.
#include "fp4/fp4_rmsnorm.h"

#include "common/checks.h"
#include "common/device.h"
#include "common/fp4_names.h"
#include "common/register.h"
#include "fp4/fp4_tensors.h"
#include "rmsnorm/rmsnorm_checks.h"

namespace my_ops {

std::tuple<at::Tensor, at::Tensor> rmsnorm_fp4_quantize(
    const at::Tensor& x, const std::optional<at::Tensor>& weight, std::optional<double> eps,
    double weight_offset, const std::optional<at::Tensor>& amax, const std::string& format,
    const std::string& scale_mode) {
  constexpr const char* kOp = "rmsnorm_fp4_quantize";
  check_device(kOp, "x", x);
  check_fp4_dtype(kOp, "x", x);
  MY_OPS_CHECK(x.dim() > 0, kOp, "x", "at least one dimension", "a tensor without dimensions");
  if (weight) check_weight(kOp, *weight, x);
  [[maybe_unused]] const auto norm = checked_options(kOp, eps, weight_offset, x.scalar_type());
  Fp4QuantizeOptions options = {};
  options.format = fp4_format_named(kOp, format);
  options.scale_mode = fp4_scale_mode_named(kOp, scale_mode, options.format);
  if (amax) check_fp4_amax(kOp, "amax", *amax, options.format, "x", x);
  options.amax = amax ? amax->const_data_ptr<float>() : nullptr;

#ifdef MY_OPS_WITH_CUDA
  if (x.is_cuda() && x.numel() > 0 && x.size(-1) % fp4_block_size(options.format) == 0) {
    const OperatorGuard guard(x);
    const auto [dense, rows] = as_rows(x);
    const auto [packed, scale] = empty_fp4(x, options.format);
    if (rmsnorm_fp4_quantize_cuda(dense, rows,
                                  kernel_weight(weight.value_or(at::Tensor()), x.scalar_type()),
                                  norm, options, packed, scale)) {
      return {packed, scale};
    }
  }
#endif
  const auto y = rmsnorm_forward(x, weight, eps, weight_offset, false, std::nullopt);
  return fp4_quantize(y, amax, format, scale_mode, "nearest", 0, false);
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library,
            "rmsnorm_fp4_quantize(Tensor x, Tensor? weight, float? eps, float weight_offset, "
            "Tensor? amax, str format, str scale_mode) -> (Tensor, Tensor)",
            &rmsnorm_fp4_quantize);
}

}  // namespace my_ops
