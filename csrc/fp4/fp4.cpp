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

namespace my_ops {
namespace {

void check_x(const char* op, const at::Tensor& x) {
  check_device(op, "x", x);
  check_fp4_dtype(op, "x", x);
  MY_OPS_CHECK(x.dim() > 0, op, "x", "at least one dimension", "a tensor without dimensions");
}

// x as rows, or a copy of it where its last dimension is not dense or its leading ones do not
// collapse into one.
std::pair<at::Tensor, Fp4Rows> as_rows(const at::Tensor& x) {
  const int64_t K = x.size(-1);
  const int64_t rows = K == 0 ? 0 : x.numel() / K;
  bool regular = K == 1 || x.stride(-1) == 1;
  int64_t row_stride = K, expected = -1;  // -1: no leading dimension seen yet
  for (int64_t d = x.dim() - 2; d >= 0; --d) {
    if (x.size(d) == 1) continue;
    if (expected == -1) {
      row_stride = expected = x.stride(d);
    }
    regular = regular && x.stride(d) == expected;
    expected *= x.size(d);
  }
  if (regular) return {x, {rows, K, row_stride}};
  return {x.contiguous(), {rows, K, K}};
}

std::vector<int64_t> with_last(const at::Tensor& like, int64_t last) {
  auto sizes = like.sizes().vec();
  sizes.back() = last;
  return sizes;
}

void check_stored(const char* op, const char* argument, const at::Tensor& tensor,
                  const std::vector<int64_t>& sizes) {
  MY_OPS_CHECK(tensor.scalar_type() == at::kByte, op, argument, "uint8", tensor.scalar_type());
  MY_OPS_CHECK(tensor.sizes() == at::IntArrayRef(sizes), op, argument,
               c10::str("the shape ", at::IntArrayRef(sizes)), tensor.sizes());
}

}  // namespace

at::Tensor fp4_amax(const at::Tensor& x) {
  constexpr const char* kOp = "fp4_amax";
  check_x(kOp, x);
  const OperatorGuard guard(x);
  auto amax = at::zeros({}, x.options().dtype(at::kFloat));
  if (x.numel() == 0) return amax;
  const auto [dense, rows] = as_rows(x);
  MY_OPS_CALL_ON_DEVICE_OF(x, fp4_amax, dense, rows, amax);
  return amax;
}

std::tuple<at::Tensor, at::Tensor> fp4_quantize(const at::Tensor& x,
                                                const std::optional<at::Tensor>& amax,
                                                const std::string& format,
                                                const std::string& scale_mode,
                                                const std::string& rounding, int64_t seed) {
  constexpr const char* kOp = "fp4_quantize";
  check_x(kOp, x);
  Fp4QuantizeOptions options;
  options.format = fp4_format_named(kOp, format);
  options.scale_mode = named_choice<Fp4ScaleMode>(kOp, "scale_mode", scale_mode,
                                                  "'floor', 'rceil', 'ceil' or 'even'",
                                                  {{"floor", Fp4ScaleMode::floor},
                                                   {"rceil", Fp4ScaleMode::rceil},
                                                   {"ceil", Fp4ScaleMode::ceil},
                                                   {"even", Fp4ScaleMode::even}});
  options.stochastic = named_choice<bool>(kOp, "rounding", rounding, "'nearest' or 'stochastic'",
                                          {{"nearest", false}, {"stochastic", true}});
  options.seed = static_cast<uint64_t>(seed);
  const bool mxfp4 = options.format == Fp4Format::mxfp4;
  MY_OPS_CHECK(mxfp4 || scale_mode == "floor", kOp, "scale_mode",
               "'floor' (the other modes are those of 'mxfp4')", "'", scale_mode, "'");
  if (amax) check_fp4_amax(kOp, "amax", *amax, options.format, "x", x);
  options.amax = amax ? amax->const_data_ptr<float>() : nullptr;

  const OperatorGuard guard(x);
  const int64_t K = x.size(-1);
  const auto bytes = x.options().dtype(at::kByte);
  auto packed = at::empty(with_last(x, ceil_div(K, 2)), bytes);
  auto scale = at::empty(with_last(x, ceil_div(K, fp4_block_size(options.format))), bytes);
  if (x.numel() == 0) return {packed, scale};
  const auto [dense, rows] = as_rows(x);
  MY_OPS_CALL_ON_DEVICE_OF(x, fp4_quantize, dense, rows, options, packed, scale);
  return {packed, scale};
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
  check_stored(kOp, "packed", packed, with_last(packed, ceil_div(K, 2)));
  check_stored(kOp, "scale", scale, with_last(packed, ceil_div(K, fp4_block_size(format))));
  if (amax) check_fp4_amax(kOp, "amax", *amax, format, "packed", packed);

  const OperatorGuard guard(packed);
  auto y = at::empty(with_last(packed, K), packed.options().dtype(dtype));
  if (y.numel() == 0) return y;
  const Fp4Rows rows{y.numel() / K, K, K};
  MY_OPS_CALL_ON_DEVICE_OF(packed, fp4_dequantize, packed.contiguous(), scale.contiguous(),
                           amax ? amax->const_data_ptr<float>() : nullptr, format, rows, y);
  return y;
}

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_op(library, "fp4_amax(Tensor x) -> Tensor", &fp4_amax);
  define_op(library,
            "fp4_quantize(Tensor x, Tensor? amax, str format, str scale_mode, str rounding, "
            "int seed) -> (Tensor, Tensor)",
            &fp4_quantize);
  define_op(library,
            "fp4_dequantize(Tensor packed, Tensor scale, Tensor? amax, SymInt K, str format, "
            "str dtype) -> Tensor",
            &fp4_dequantize);
}

}  // namespace my_ops
