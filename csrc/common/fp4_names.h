// Host: the names by which Python chooses formats, dtypes and modes of the FP4 operators, and the
// checks that they share.
#pragma once

#include <string>
#include <utility>

#include "common/checks.h"
#include "common/fp4.h"

namespace my_ops {

template <typename T, size_t N>
T named_choice(const char* op, const char* argument, const std::string& name, const char* expected,
               const std::pair<const char*, T> (&choices)[N]) {
  for (const auto& choice : choices) {
    if (name == choice.first) return choice.second;
  }
  MY_OPS_CHECK(false, op, argument, expected, "'", name, "'");
}

inline Fp4Format fp4_format_named(const char* op, const std::string& name) {
  return named_choice<Fp4Format>(op, "format", name, "'nvfp4' or 'mxfp4'",
                                 {{"nvfp4", Fp4Format::nvfp4}, {"mxfp4", Fp4Format::mxfp4}});
}

inline Fp4ScaleMode fp4_scale_mode_named(const char* op, const std::string& name,
                                         Fp4Format format) {
  const auto mode =
      named_choice<Fp4ScaleMode>(op, "scale_mode", name, "'floor', 'rceil', 'ceil' or 'even'",
                                 {{"floor", Fp4ScaleMode::floor},
                                  {"rceil", Fp4ScaleMode::rceil},
                                  {"ceil", Fp4ScaleMode::ceil},
                                  {"even", Fp4ScaleMode::even}});
  MY_OPS_CHECK(format == Fp4Format::mxfp4 || mode == Fp4ScaleMode::floor, op, "scale_mode",
               "'floor' (the other modes are those of 'mxfp4')", "'", name, "'");
  return mode;
}

// The dtypes of the high-precision side.
inline at::ScalarType fp4_dtype_named(const char* op, const std::string& name) {
  return named_choice<at::ScalarType>(
      op, "dtype", name, "'float32', 'float16' or 'bfloat16'",
      {{"float32", at::kFloat}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}});
}

inline void check_fp4_dtype(const char* op, const char* argument, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  MY_OPS_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, op, argument,
               "float32, float16 or bfloat16", dtype);
}

// The amax of NVFP4 with two levels. Its value is checked where that needs no synchronization.
inline void check_fp4_amax(const char* op, const char* argument, const at::Tensor& amax,
                           Fp4Format format, const char* like_argument, const at::Tensor& like) {
  MY_OPS_CHECK(format == Fp4Format::nvfp4, op, argument,
               "None (the format 'mxfp4' has no tensor scale)", "a tensor");
  check_same_device(op, argument, amax, like_argument, like);
  MY_OPS_CHECK(amax.scalar_type() == at::kFloat && amax.numel() == 1, op, argument,
               "one float32 element", amax.numel(), " of ", amax.scalar_type());
  if (amax.is_cpu()) {
    const float value = *amax.const_data_ptr<float>();
    MY_OPS_CHECK(value >= 0.0f, op, argument, "a number from 0 on", value);
  }
}

}  // namespace my_ops
