// Host: the argument checks of rmsnorm, for .cpp files.
#pragma once

#include <limits>

#include "common/checks.h"
#include "rmsnorm/rmsnorm.h"

namespace my_ops {

inline bool is_16_bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }
inline bool has_kernel(at::ScalarType dtype) {
  return is_16_bit(dtype) || dtype == at::kFloat || dtype == at::kDouble;
}
constexpr const char* kDtypes = "float16, bfloat16, float32 or float64";

inline void check_x(const char* op, const at::Tensor& x) {
  check_device(op, "x", x);
  MY_OPS_CHECK(has_kernel(x.scalar_type()), op, "x", kDtypes, x.scalar_type());
  MY_OPS_CHECK(x.dim() >= 1, op, "x", "at least one dimension", "a scalar");
}

inline void check_weight(const char* op, const at::Tensor& weight, const at::Tensor& x) {
  check_same_device(op, "weight", weight, "x", x);
  MY_OPS_CHECK(weight.dim() == 1 && weight.size(0) == x.size(-1), op, "weight",
               c10::str("the shape of x's last dimension ([", x.size(-1), "])"), weight.sizes());
  MY_OPS_CHECK(has_kernel(weight.scalar_type()), op, "weight", kDtypes, weight.scalar_type());
  MY_OPS_CHECK(weight.scalar_type() != at::kDouble || x.scalar_type() == at::kDouble, op, "weight",
               "float64 only with a float64 x", c10::str("float64 with ", x.scalar_type()));
}

// The weight in a dtype that the kernels take. Widening is exact.
inline at::Tensor kernel_weight(const at::Tensor& weight, at::ScalarType x_dtype) {
  if (!weight.defined()) return weight;
  if (weight.scalar_type() == x_dtype) return weight.contiguous();
  return weight.to(x_dtype == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}

inline void check_like_x(const char* op, const char* argument, const at::Tensor& tensor,
                         const at::Tensor& x) {
  check_same_device(op, argument, tensor, "x", x);
  check_same_shape(op, argument, tensor, "x", x);
}

inline void check_grad(const char* op, const at::Tensor& grad, const at::Tensor& x) {
  check_like_x(op, "grad", grad, x);
  const bool fits = has_kernel(grad.scalar_type()) &&
                    (grad.scalar_type() == at::kDouble) == (x.scalar_type() == at::kDouble);
  MY_OPS_CHECK(fits, op, "grad",
               x.scalar_type() == at::kDouble ? "float64" : "float16, bfloat16 or float32",
               grad.scalar_type());
}

inline RMSNormOptions checked_options(const char* op, std::optional<double> eps,
                                      double weight_offset, at::ScalarType dtype) {
  // As torch.nn.functional.rms_norm: the epsilon of the type that is computed in.
  const double machine_eps = dtype == at::kDouble
                                 ? std::numeric_limits<double>::epsilon()
                                 : static_cast<double>(std::numeric_limits<float>::epsilon());
  MY_OPS_CHECK(!eps || *eps >= 0, op, "eps", "None or a number that is not negative", *eps);
  return {eps.value_or(machine_eps), weight_offset};
}

inline at::ScalarType checked_out_dtype(const char* op, std::optional<std::string_view> name,
                                        at::ScalarType x_dtype) {
  if (!name) return x_dtype;
  const bool is_double = x_dtype == at::kDouble;
  if (is_double && *name == "float64") return at::kDouble;
  if (!is_double && *name == "float32") return at::kFloat;
  if (!is_double && *name == "float16") return at::kHalf;
  if (!is_double && *name == "bfloat16") return at::kBFloat16;
  MY_OPS_CHECK(false, op, "out_dtype",
               is_double ? "float64 for a float64 x" : "float16, bfloat16 or float32", *name);
}

}  // namespace my_ops
