// Host: one call that registers an operator with the dispatcher.
#pragma once

#include <ATen/core/enum_tag.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace my_ops {

// Defines `schema` and registers `kernel` for CPU and CUDA (it chooses by the device of its
// arguments). These raw operators have no derivative: the Functions in my_ops/ops call them below
// autograd, and the fallback turns any other differentiation into an error instead of zeros. It
// hangs that error on the results, so an operator without any brings an `autograd` of its own.
template <typename Kernel>
void define_op(torch::Library& library, const std::string& schema, Kernel* kernel,
               torch::CppFunction autograd = torch::autograd::autogradNotImplementedFallback()) {
  const std::string name = schema.substr(0, schema.find('('));
  library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CUDA, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, std::move(autograd)));
}

}  // namespace my_ops
