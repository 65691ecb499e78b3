// Host: one call that registers an operator with the dispatcher.
#pragma once

#include <ATen/core/enum_tag.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace my_ops {

// Defines `schema` and registers `kernel` for CPU and CUDA (it chooses by the device of its
// arguments), and `autograd`, which records a derivative (common/autograd_node.h).
template <typename Kernel>
void define_op(torch::Library& library, const std::string& schema, Kernel* kernel,
               torch::CppFunction autograd) {
  const std::string name = schema.substr(0, schema.find('('));
  library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CUDA, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, std::move(autograd)));
}

// The same without a derivative: a Function in my_ops/ops calls it below autograd, and the fallback
// turns any other differentiation into an error instead of zeros.
template <typename Kernel>
void define_op(torch::Library& library, const std::string& schema, Kernel* kernel) {
  define_op(library, schema, kernel, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace my_ops
