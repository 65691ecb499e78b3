// Host: one call that registers an operator together with its derivative.
//
// A call is recorded at the dispatch key Autograd, as those of torch's own operators are, so that
// torch.func, torch.compile and double backward take it for one of them. (torch.func refuses
// torch::autograd::Function; a Function in Python would take 3 us a call more, and 5 in backward.)
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>

#include "common/autograd_node.h"
#include "common/register.h"

namespace my_ops {

// Nodes count their references themselves in torch 2.14, by shared_ptr in 2.11.
template <typename Node>
auto make_node() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<Node>();
  } else {
    return std::make_shared<Node>();
  }
}

// An argument of an operator, if it is a tensor or may be one.
template <typename Arg>
auto as_input(const Arg& arg) {
  if constexpr (std::is_same_v<Arg, at::Tensor> || std::is_same_v<Arg, std::optional<at::Tensor>>) {
    return std::tie(arg);
  } else {
    return std::tuple<>();
  }
}

inline std::tuple<at::Tensor> as_tuple(const at::Tensor& result) { return {result}; }
template <typename... Tensors>
const std::tuple<Tensors...>& as_tuple(const std::tuple<Tensors...>& results) {
  return results;
}

// The operator that runs `kernel`.
template <auto kernel>
struct Operator;

template <typename Return, typename... Args, Return (*kernel)(Args...)>
struct Operator<kernel> {
  static inline std::optional<c10::TypedOperatorHandle<Return(Args...)>> handle;

  static Return call(Args... args) { return handle->call(args...); }

  // The kernel at the key Autograd: hangs a node with a `Formula` on the results. The formula saves
  // what it needs by `remember(node, results, args...)`.
  template <typename Formula>
  static Return recorded(c10::DispatchKeySet keys, Args... args) {
    namespace autograd = torch::autograd;
    const auto inputs = std::tuple_cat(as_input(args)...);
    const bool forward_mode = std::apply(
        [](const auto&... tensors) { return (autograd::isFwGradDefined(tensors) || ...); }, inputs);
    TORCH_CHECK_NOT_IMPLEMENTED(
        !forward_mode, "my_ops.", handle->operator_name().name.substr(std::size("my_ops:")),
        ": expected no forward-mode differentiation (jvp, dual_level), which it has no rule for; ",
        "torch.func.grad and vmap it takes");
    Return results = [&] {
      const at::AutoDispatchBelowADInplaceOrView below;
      return handle->redispatch(keys & c10::after_autograd_keyset, args...);
    }();
    const bool needed = std::apply(
        [](const auto&... tensors) { return autograd::compute_requires_grad(tensors...); }, inputs);
    if (needed) {
      const auto node = make_node<FormulaNode<Formula>>();
      node->set_next_edges(std::apply(
          [](const auto&... tensors) { return autograd::collect_next_edges(tensors...); }, inputs));
      std::apply([&](const auto&... each) { (autograd::set_history(each, node), ...); },
                 as_tuple(results));
      node->formula.remember(*node, results, args...);
    }
    return results;
  }
};

template <auto kernel, typename Formula>
void define_differentiable_op(torch::Library& library, const std::string& schema) {
  using Op = Operator<kernel>;
  define_op(library, schema, kernel, torch::CppFunction(&Op::template recorded<Formula>));
  const std::string name = schema.substr(0, schema.find('('));
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(("my_ops::" + name).c_str(), "");
  Op::handle = handle.template typed<std::remove_pointer_t<decltype(kernel)>>();
}

}  // namespace my_ops
