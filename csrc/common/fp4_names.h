// Host: the names by which Python chooses formats, dtypes and modes of the FP4 operators.
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

}  // namespace my_ops
