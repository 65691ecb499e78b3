// fp4_quantize, fp4_dequantize: argument checks, allocation, choice of the device, registration.
#include "fp4/fp4.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "common/ceil_div.h"
#include "common/checks.h"
#include "common/device.h"
#include "common/fp4_names.h"
#include "common/register.h"
#include "fp4/fp4_hadamard.h"
#include "fp4/fp4_tensors.h"

namespace my_ops {
namespace {

void check_x(const char* op, const at::Tensor& x) {
  check_device(op, "x", x);
  check_fp4_dtype(op, "x", x);
  MY_OPS_CHECK(x.dim() > 0, op, "x", "at least one dimension", "a tensor without dimensions");
}

// As as_rows, but without a copy of a transposed matrix, whose rows are dense columns in memory.
std::pair<at::Tensor, Fp4Rows> as_rows_or_columns(const at::Tensor& x) {
  const bool transposed = x.dim() == 2 && x.size(0) > 1 && x.size(1) > 1 && x.stride(0) == 1 &&
                          x.stride(1) >= x.size(0);
  if (transposed) return {x, {x.size(0), x.size(1), 1, x.stride(1)}};
  return as_rows(x);
}

void check_stored(const char* op, const char* argument, const at::Tensor& tensor,
                  at::IntArrayRef sizes) {
  MY_OPS_CHECK(tensor.scalar_type() == at::kByte, op, argument, "uint8", tensor.scalar_type());
  MY_OPS_CHECK(tensor.sizes() == sizes, op, argument, c10::str("the shape ", sizes),
               tensor.sizes());
}

// The amax of x, seen as these rows. The order of the elements does not matter: columns are taken
// as rows.
void find_amax(const at::Tensor& dense, Fp4Rows rows, const at::Tensor& amax) {
  if (rows.k_stride != 1) rows = {rows.K, rows.rows, rows.k_stride};
  MY_OPS_CALL_ON_DEVICE_OF(dense, fp4_amax, dense, rows, amax);
}

Fp4QuantizeOptions checked_options(const char* kOp, const at::Tensor& x, const std::string& format,
                                   const std::string& scale_mode, const std::string& rounding,
                                   int64_t seed, bool block2d) {
  check_x(kOp, x);
  Fp4QuantizeOptions options;
  options.format = fp4_format_named(kOp, format);
  options.scale_mode = fp4_scale_mode_named(kOp, scale_mode, options.format);
  options.stochastic = named_choice<bool>(kOp, "rounding", rounding, "'nearest' or 'stochastic'",
                                          {{"nearest", false}, {"stochastic", true}});
  options.seed = static_cast<uint64_t>(seed);
  options.tiles = block2d;
  const bool mxfp4 = options.format == Fp4Format::mxfp4;
  MY_OPS_CHECK(!block2d || (!mxfp4 && x.dim() == 2), kOp, "block2d",
               "False, but for a matrix and 'nvfp4'", "True for ", x.dim(), " dimensions and '",
               format, "'");
  options.amax = nullptr;
  return options;
}

std::pair<at::Tensor, Fp4Rows> as_rows_of_blocks(const at::Tensor& x, bool block2d) {
  return x.is_cuda() && !block2d ? as_rows_or_columns(x) : as_rows(x);
}

}  // namespace

at::Tensor fp4_amax(const at::Tensor& x) {
  check_x("fp4_amax", x);
  const OperatorGuard guard(x);
  const auto float32 = x.options().dtype(at::kFloat);
  if (x.numel() == 0) return at::zeros({}, float32);
  auto amax = at::empty({}, float32);
  const auto [dense, rows] = as_rows_or_columns(x);
  find_amax(dense, rows, amax);
  return amax;
}

std::tuple<at::Tensor, at::Tensor> fp4_quantize(
    const at::Tensor& x, const std::optional<at::Tensor>& amax, const std::string& format,
    const std::string& scale_mode, const std::string& rounding, int64_t seed, bool block2d) {
  constexpr const char* kOp = "fp4_quantize";
  auto options = checked_options(kOp, x, format, scale_mode, rounding, seed, block2d);
  if (amax) check_fp4_amax(kOp, "amax", *amax, options.format, "x", x);
  options.amax = amax ? amax->const_data_ptr<float>() : nullptr;

  const OperatorGuard guard(x);
  const auto [packed, scale] = empty_fp4(x, options.format);
  if (x.numel() == 0) return {packed, scale};
  const auto [dense, rows] = as_rows_of_blocks(x, block2d);
  MY_OPS_CALL_ON_DEVICE_OF(x, fp4_quantize, dense, rows, options, packed, scale);
  return {packed, scale};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fp4_quantize_two_level(const at::Tensor& x,
                                                                      const std::string& scale_mode,
                                                                      const std::string& rounding,
                                                                      int64_t seed, bool block2d) {
  auto options = checked_options("fp4_quantize", x, "nvfp4", scale_mode, rounding, seed, block2d);
  const OperatorGuard guard(x);
  const auto [packed, scale] = empty_fp4(x, options.format);
  const auto float32 = x.options().dtype(at::kFloat);
  if (x.numel() == 0) return {packed, scale, at::zeros({}, float32)};
  const auto amax = at::empty({}, float32);
  const auto [dense, rows] = as_rows_of_blocks(x, block2d);
#ifdef MY_OPS_WITH_CUDA
  if (x.is_cuda() && fp4_quantize_small_cuda(dense, rows, options, packed, scale, amax)) {
    return {packed, scale, amax};
  }
#endif
  find_amax(dense, rows, amax);
  options.amax = amax.const_data_ptr<float>();
  MY_OPS_CALL_ON_DEVICE_OF(x, fp4_quantize, dense, rows, options, packed, scale);
  return {packed, scale, amax};
}

at::Tensor fp4_dequantize(const at::Tensor& packed, const at::Tensor& scale,
                          const std::optional<at::Tensor>& amax, int64_t K,
                          const std::string& format_name, const std::string& dtype_name) {
  constexpr const char* kOp = "fp4_dequantize";
  const auto format = fp4_format_named(kOp, format_name);
  const auto dtype = fp4_dtype_named(kOp, dtype_name);
  check_device(kOp, "packed", packed);
  check_same_device(kOp, "scale", scale, "packed", packed);
  MY_OPS_CHECK(packed.dim() > 0, kOp, "packed", "at least one dimension",
               "a tensor without dimensions");
  MY_OPS_CHECK(K >= 0, kOp, "K", "the number of elements of a row", K);
  check_stored(kOp, "packed", packed, with_last(packed.sizes(), ceil_div(K, 2)));
  check_stored(kOp, "scale", scale, with_last(packed.sizes(), ceil_div(K, fp4_block_size(format))));
  if (amax) check_fp4_amax(kOp, "amax", *amax, format, "packed", packed);

  const OperatorGuard guard(packed);
  auto y = at::empty(with_last(packed.sizes(), K), packed.options().dtype(dtype));
  if (y.numel() == 0) return y;
  const Fp4Rows rows{y.numel() / K, K, K};
  MY_OPS_CALL_ON_DEVICE_OF(packed, fp4_dequantize, packed.contiguous(), scale.contiguous(),
                           amax ? amax->const_data_ptr<float>() : nullptr, format, rows, y);
  return y;
}

at::Tensor fp4_hadamard(const at::Tensor& x) {
  check_x("fp4_hadamard", x);
  const OperatorGuard guard(x);
  const int64_t groups = ceil_div(x.size(-1), int64_t{kHadamardPoints});
  auto y = at::empty(with_last(x.sizes(), groups * kHadamardPoints), x.options().dtype(at::kFloat));
  if (y.numel() == 0) return y;
  const auto [dense, rows] = as_rows_or_columns(x);
  MY_OPS_CALL_ON_DEVICE_OF(x, fp4_hadamard, dense, rows, y);
  return y;
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library, "fp4_amax(Tensor x) -> Tensor", &fp4_amax);
  define_op(library,
            "fp4_quantize(Tensor x, Tensor? amax, str format, str scale_mode, str rounding, "
            "int seed, bool block2d=False) -> (Tensor, Tensor)",
            &fp4_quantize);
  define_op(library,
            "fp4_quantize_two_level(Tensor x, str scale_mode, str rounding, int seed, "
            "bool block2d=False) -> (Tensor, Tensor, Tensor)",
            &fp4_quantize_two_level);
  define_op(library,
            "fp4_dequantize(Tensor packed, Tensor scale, Tensor? amax, SymInt K, str format, "
            "str dtype) -> Tensor",
            &fp4_dequantize);
  define_op(library, "fp4_hadamard(Tensor x) -> Tensor", &fp4_hadamard);
}

}  // namespace my_ops
