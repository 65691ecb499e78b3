// rmsnorm: derivatives, registration.
#include <ATen/TensorOperators.h>

#include <limits>

#include "common/differentiable.h"
#include "rmsnorm/rmsnorm.h"

namespace my_ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Eps = std::optional<double>;

OptionalTensor if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// What every formula keeps beside tensors.
struct Numbers {
  Eps eps;
  double weight_offset = 0;

  std::vector<double> numbers() const { return {eps.value_or(-1), weight_offset}; }
};

// grad_x and grad_weight, undefined where not wanted.
std::pair<at::Tensor, at::Tensor> gradients(bool want_x, bool want_weight, const at::Tensor& grad,
                                            const at::Tensor& grad_sum, const at::Tensor& x,
                                            const at::Tensor& weight, const Numbers& numbers) {
  const auto [eps, offset] = numbers;
  const auto sum = if_defined(grad_sum);
  if (want_x && want_weight) {
    auto [grad_x, grad_weight] =
        Operator<&rmsnorm_backward>::call(grad, sum, x, weight, eps, offset);
    return {grad_x, grad_weight};
  }
  if (want_x) {
    const auto weight_or_none = if_defined(weight);
    return {Operator<&rmsnorm_backward_x>::call(grad, sum, x, weight_or_none, eps, offset), {}};
  }
  if (!want_weight) return {};
  return {{}, Operator<&rmsnorm_backward_weight>::call(grad, x, weight, eps, offset)};
}

struct RMSNormFormula : Numbers {
  static constexpr const char* kName = "RMSNormBackward";

  template <typename Node>
  void remember(Node& node, const at::Tensor& /*y*/, const at::Tensor& x,
                const OptionalTensor& weight, Eps eps, double offset, bool /*round_before_weight*/,
                std::optional<std::string_view> /*out_dtype*/) {
    Numbers::operator=({eps, offset});
    node.save(x, weight);
  }

  variable_list operator()(const Wanted& wanted, const variable_list& grads,
                           const variable_list& saved) const {
    auto [grad_x, grad_weight] =
        gradients(wanted[0], wanted[1], grads[0], {}, saved[0], saved[1], *this);
    return {grad_x, grad_weight};
  }
};

struct AddRMSNormFormula : Numbers {
  static constexpr const char* kName = "AddRMSNormBackward";

  template <typename Node>
  void remember(Node& node, const std::tuple<at::Tensor, at::Tensor>& y_and_sum, const at::Tensor&,
                const at::Tensor&, const OptionalTensor& weight, Eps eps, double offset,
                bool /*round_before_weight*/, std::optional<std::string_view> /*out_dtype*/) {
    Numbers::operator=({eps, offset});
    node.save_result(std::get<1>(y_and_sum));
    node.save(weight);
  }

  variable_list operator()(const Wanted& wanted, const variable_list& grads,
                           const variable_list& saved) const {
    const auto &grad = grads[0], &grad_sum = grads[1];
    if (!grad.defined()) return {grad_sum, grad_sum, {}};
    auto [grad_x, grad_weight] =
        gradients(wanted[0] || wanted[1], wanted[2], grad, grad_sum, saved[0], saved[1], *this);
    return {grad_x, grad_x, grad_weight};
  }
};

// ---- The second derivative, by formulas of torch, which can be differentiated again ----

at::Tensor row_mean(const at::Tensor& rows) { return rows.mean(at::OptionalIntArrayRef(-1), true); }

// With n = rstd and a = grad * w: grad_x = n a - n^3 x mean(a x), whose cotangent is u, and
// grad_weight = sum of n grad x, whose cotangent is v; either may be undefined. Returns the
// cotangents of grad, x and weight, which are what is `saved`.
variable_list backward_of_gradients(const at::Tensor& u_or_none, const at::Tensor& v_or_none,
                                    const variable_list& saved, const Numbers& numbers) {
  const bool is_double = saved[1].scalar_type() == at::kDouble;
  const auto wide = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(is_double ? at::kDouble : at::kFloat) : tensor;
  };
  const auto grad = wide(saved[0]), x = wide(saved[1]), weight = wide(saved[2]);
  const auto u = wide(u_or_none), v = wide(v_or_none);
  const auto times_w = [&](const at::Tensor& rows) {
    return weight.defined() ? rows * (weight + numbers.weight_offset) : rows;
  };
  const double machine_eps = is_double ? std::numeric_limits<double>::epsilon()
                                       : double{std::numeric_limits<float>::epsilon()};
  const auto n = (row_mean(x * x) + numbers.eps.value_or(machine_eps)).rsqrt();
  const auto n3 = n * n * n;

  variable_list result(3);
  if (u.defined()) {
    const auto a = times_w(grad), mean_ax = row_mean(a * x), mean_ux = row_mean(u * x);
    const auto to_a = n * u - n3 * x * mean_ux;
    result[0] = times_w(to_a);
    result[1] =
        n3 * ((3 * n * n * mean_ax * mean_ux - row_mean(a * u)) * x - u * mean_ax - a * mean_ux);
    if (weight.defined()) result[2] = (to_a * grad).sum_to_size_symint(weight.sym_sizes());
  }
  if (v.defined()) {
    const auto to_grad = n * v * x;
    const auto to_x = n * v * grad - n3 * x * row_mean(v * grad * x);
    result[0] = u.defined() ? result[0] + to_grad : to_grad;
    result[1] = u.defined() ? result[1] + to_x : to_x;
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (result[i].defined()) result[i] = result[i].to(saved[i].scalar_type());
  }
  return result;
}

// Of rmsnorm_backward and rmsnorm_backward_x.
struct RMSNormBackwardFormula : Numbers {
  static constexpr const char* kName = "RMSNormBackwardBackward";

  template <typename Node, typename Results, typename Weight>
  void remember(Node& node, const Results&, const at::Tensor& grad, const OptionalTensor&,
                const at::Tensor& x, const Weight& weight, Eps eps, double offset) {
    Numbers::operator=({eps, offset});
    node.save(grad, x, weight);
  }

  variable_list operator()(const Wanted& wanted, const variable_list& grads,
                           const variable_list& saved) const {
    const auto v = grads.size() > 1 ? grads[1] : at::Tensor();
    const auto result = backward_of_gradients(grads[0], v, saved, *this);
    return {result[0], wanted[1] ? grads[0] : at::Tensor(), result[1], result[2]};
  }
};

struct RMSNormBackwardWeightFormula : Numbers {
  static constexpr const char* kName = "RMSNormBackwardWeightBackward";

  template <typename Node>
  void remember(Node& node, const at::Tensor&, const at::Tensor& grad, const at::Tensor& x,
                const at::Tensor& weight, Eps eps, double offset) {
    Numbers::operator=({eps, offset});
    node.save(grad, x, weight);
  }

  variable_list operator()(const Wanted&, const variable_list& grads,
                           const variable_list& saved) const {
    return backward_of_gradients({}, grads[0], saved, *this);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(my_ops, library) {
  define_differentiable_op<&rmsnorm_forward, RMSNormFormula>(
      library,
      "rmsnorm_forward(Tensor x, Tensor? weight, float? eps, float weight_offset, "
      "bool round_before_weight, str? out_dtype) -> Tensor");
  define_differentiable_op<&add_rmsnorm_forward, AddRMSNormFormula>(
      library,
      "add_rmsnorm_forward(Tensor x, Tensor residual, Tensor? weight, float? eps, "
      "float weight_offset, bool round_before_weight, str? out_dtype) -> (Tensor, Tensor)");
  define_differentiable_op<&rmsnorm_backward, RMSNormBackwardFormula>(
      library,
      "rmsnorm_backward(Tensor grad, Tensor? grad_sum, Tensor x, Tensor weight, float? eps, "
      "float weight_offset) -> (Tensor, Tensor)");
  define_differentiable_op<&rmsnorm_backward_x, RMSNormBackwardFormula>(
      library,
      "rmsnorm_backward_x(Tensor grad, Tensor? grad_sum, Tensor x, Tensor? weight, float? eps, "
      "float weight_offset) -> Tensor");
  define_differentiable_op<&rmsnorm_backward_weight, RMSNormBackwardWeightFormula>(
      library,
      "rmsnorm_backward_weight(Tensor grad, Tensor x, Tensor weight, float? eps, "
      "float weight_offset) -> Tensor");
}

}  // namespace my_ops
