// Host: what a call leaves in torch's graph of gradients; common/differentiable.h makes it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace my_ops {

using torch::autograd::variable_list;
using Wanted = std::vector<bool>;  // for each input, whether its gradient is asked for

// The backward of one call. Formula has
//   variable_list operator()(const Wanted&, const variable_list& grads, const variable_list& saved)
//                                   const, which returns the gradients of the call's tensors.
//                                   `grads` are those of its results, at least one of them defined;
//                                   an undefined gradient, given or returned, is zero
//   std::vector<double> numbers() const   what tells it from other formulas of its type
//   static constexpr const char* kName    of the node
template <typename Formula>
class FormulaNode final : public torch::autograd::Node {
 public:
  Formula formula;

  // Inputs of the call; absent ones come back undefined.
  template <typename... Tensors>
  void save(const Tensors&... tensors) {
    (saved_.emplace_back(if_present(tensors), /*is_output=*/false), ...);
  }
  void save_result(const at::Tensor& tensor) { saved_.emplace_back(tensor, /*is_output=*/true); }

  std::string name() const override { return Formula::kName; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& variable : saved_) variable.reset_data();
  }

  // ---- Compiled autograd: what decides about the graph, and the formula as a part of it ----

  void compiled_args(torch::autograd::CompiledNodeArgs& args) const override {
    args.collect(saved_, true);
    args.collect(formula.numbers());
  }

  variable_list apply_with_saved(const variable_list& grads,
                                 torch::autograd::SwapSavedVariables& swap) override {
    namespace compiled = torch::dynamo::autograd;
    for (auto& variable : saved_) swap.before(variable);
    compiled::PackedArgs packed;
    packed.pack(unpacked());
    const auto arguments = std::move(packed).vec();
    std::vector<at::TypePtr> types;
    for (const auto& argument : arguments) types.push_back(argument.type());
    const auto traced = [formula = formula, wanted = wanted()](
                            const variable_list& grads, const std::vector<c10::IValue>& arguments) {
      return computed(formula, wanted, grads,
                      compiled::PackedArgs(arguments).template unpack<variable_list>());
    };
    const auto& compiler = compiled::getPyCompilerInterface();
    const auto function = compiler->bind_function(swap.get_py_compiler(), name(), traced, types,
                                                  /*is_custom_function=*/true);
    auto result = compiler->call_function(
        swap.get_py_compiler(), "apply_functional", function, grads, arguments,
        compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            compiled::get_input_metadata(next_edges())));
    for (auto& variable : saved_) swap.after(variable);
    return result;
  }

 private:
  static at::Tensor if_present(const at::Tensor& tensor) { return tensor; }
  static at::Tensor if_present(const std::optional<at::Tensor>& tensor) {
    return tensor.value_or(at::Tensor());
  }

  variable_list apply(variable_list&& grads) override {
    return computed(formula, wanted(), grads, unpacked());
  }

  static variable_list computed(const Formula& formula, const Wanted& wanted,
                                const variable_list& grads, const variable_list& saved) {
    const auto defined = [](const at::Tensor& grad) { return grad.defined(); };
    if (std::none_of(grads.begin(), grads.end(), defined)) return variable_list(wanted.size());
    return formula(wanted, grads, saved);
  }

  variable_list unpacked() {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list saved;
    saved.reserve(saved_.size());
    for (const auto& variable : saved_) saved.push_back(variable.unpack(getptr()));
    return saved;
  }

  Wanted wanted() const {
    Wanted result(num_outputs());
    for (size_t input = 0; input < result.size(); ++input) {
      result[input] = task_should_compute_output(input);
    }
    return result;
  }

  std::vector<torch::autograd::SavedVariable> saved_;
};

}  // namespace my_ops
