// The compiled module `my_ops._C`: the kernel-level functions, without autograd.
// Not torch/extension.h, which includes all of torch and triples the time that this file takes.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include "fp4/fp4.h"
#include "fp4/fp4_rmsnorm.h"
#include "fp4_matmul/fp4_matmul.h"
#include "matmul/matmul.h"
#include "rmsnorm/rmsnorm.h"
#include "square/square.h"

namespace {

using ReleaseGil = pybind11::call_guard<pybind11::gil_scoped_release>;
using pybind11::arg;

// What an in-place operator is called by: it returns its argument.
template <void (*op)(at::Tensor&)>
at::Tensor in_place(at::Tensor x) {
  op(x);
  return x;
}

at::Tensor rmsnorm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                   std::optional<double> eps) {
  return my_ops::rmsnorm_forward(x, weight, eps, 0.0, false, std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> rmsnorm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight,
                                                    std::optional<double> eps) {
  return my_ops::rmsnorm_backward(grad, std::nullopt, x, weight, eps, 0.0);
}

// The type of an argument in a schema: sizes may be symbolic.
template <typename T>
struct InSchema {
  using type = T;
};
template <>
struct InSchema<at::IntArrayRef> {
  using type = c10::SymIntArrayRef;
};

// Defines `ops`.`name`: the operator my_ops::`name`, which runs `kernel`, called by way of the
// dispatcher (so that fake tensors, modes and transforms see it) but without boxing its arguments.
template <typename Return, typename... Args>
void define_dispatched(pybind11::module_& ops, const char* name) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow((std::string("my_ops::") + name).c_str(), "")
                      .typed<Return(Args...)>();
  ops.def(
      name, [op](Args... args) -> Return { return op.call(std::forward<Args>(args)...); },
      ReleaseGil());
}

template <typename Return, typename... KernelArgs>
void define_dispatched(pybind11::module_& ops, const char* name, Return (*)(KernelArgs...)) {
  define_dispatched<Return, typename InSchema<KernelArgs>::type...>(ops, name);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module_) {
  module_.doc() = "Kernel-level functions of my_ops. They record no gradients; use my_ops.<op>.";

  module_.def("fp4_amax", &my_ops::fp4_amax, arg("x"), ReleaseGil());
  module_.def("fp4_quantize", &my_ops::fp4_quantize, arg("x"), arg("amax") = pybind11::none(),
              arg("format") = "nvfp4", arg("scale_mode") = "floor", arg("rounding") = "nearest",
              arg("seed") = 0, arg("block2d") = false, ReleaseGil());
  module_.def("fp4_dequantize", &my_ops::fp4_dequantize, arg("packed"), arg("scale"), arg("amax"),
              arg("K"), arg("format") = "nvfp4", arg("dtype") = "float32", ReleaseGil());

  module_.def("matmul", &my_ops::matmul_forward, arg("A"), arg("B"), arg("precision") = "ieee",
              ReleaseGil());
  module_.def("matmul_backward_A", &my_ops::matmul_backward_A, arg("grad"), arg("B"),
              arg("precision") = "ieee", ReleaseGil());
  module_.def("matmul_backward_B", &my_ops::matmul_backward_B, arg("A"), arg("grad"),
              arg("precision") = "ieee", ReleaseGil());

  module_.def("fp4_matmul", &my_ops::fp4_matmul_forward, arg("a_packed"), arg("a_scale"),
              arg("a_amax"), arg("a_shape"), arg("a_transposed"), arg("b_packed"), arg("b_scale"),
              arg("b_amax"), arg("b_shape"), arg("b_transposed"), arg("format") = "nvfp4",
              arg("dtype") = "float32", ReleaseGil());
  module_.def("fp4_matmul_backward_A", &my_ops::fp4_matmul_backward_A, arg("grad"), arg("b_packed"),
              arg("b_scale"), arg("b_amax"), arg("b_shape"), arg("b_transposed"),
              arg("format") = "nvfp4", arg("dtype") = "float32", ReleaseGil());
  module_.def("fp4_matmul_backward_B", &my_ops::fp4_matmul_backward_B, arg("a_packed"),
              arg("a_scale"), arg("a_amax"), arg("a_shape"), arg("a_transposed"), arg("grad"),
              arg("format") = "nvfp4", arg("dtype") = "float32", ReleaseGil());
  module_.def("fp4_linear", &my_ops::fp4_linear_forward, arg("x"), arg("weight_packed"),
              arg("weight_scale"), arg("weight_amax"), arg("weight_shape"),
              arg("weight_transposed") = false, arg("bias") = pybind11::none(),
              arg("format") = "nvfp4", ReleaseGil());

  module_.def("square", &my_ops::square_forward, arg("x"), ReleaseGil());
  module_.def("square_", &in_place<&my_ops::square_inplace>, arg("x"), ReleaseGil());

  module_.def("rmsnorm", &rmsnorm, arg("x"), arg("weight") = pybind11::none(), arg("eps") = 1e-6,
              ReleaseGil());
  module_.def("rmsnorm_backward", &rmsnorm_backward, arg("grad"), arg("x"), arg("weight"),
              arg("eps") = 1e-6, ReleaseGil());

  auto ops = module_.def_submodule("ops", "The operators of torch.ops.my_ops, called directly.");
  define_dispatched(ops, "square_forward", &my_ops::square_forward);
  define_dispatched(ops, "square_inplace", &my_ops::square_inplace);
  define_dispatched(ops, "square_backward", &my_ops::square_backward);
  define_dispatched(ops, "matmul_forward", &my_ops::matmul_forward);
  define_dispatched(ops, "matmul_backward_A", &my_ops::matmul_backward_A);
  define_dispatched(ops, "matmul_backward_B", &my_ops::matmul_backward_B);
  define_dispatched(ops, "rmsnorm_forward", &my_ops::rmsnorm_forward);
  define_dispatched(ops, "add_rmsnorm_forward", &my_ops::add_rmsnorm_forward);
  define_dispatched(ops, "rmsnorm_backward", &my_ops::rmsnorm_backward);
  define_dispatched(ops, "rmsnorm_backward_x", &my_ops::rmsnorm_backward_x);
  define_dispatched(ops, "rmsnorm_backward_weight", &my_ops::rmsnorm_backward_weight);
  define_dispatched(ops, "fp4_amax", &my_ops::fp4_amax);
  define_dispatched(ops, "fp4_quantize", &my_ops::fp4_quantize);
  define_dispatched(ops, "fp4_quantize_two_level", &my_ops::fp4_quantize_two_level);
  define_dispatched<at::Tensor, const at::Tensor&, const at::Tensor&,
                    const std::optional<at::Tensor>&, c10::SymInt, const std::string&,
                    const std::string&>(ops, "fp4_dequantize");
  define_dispatched(ops, "fp4_hadamard", &my_ops::fp4_hadamard);
  define_dispatched(ops, "rmsnorm_fp4_quantize", &my_ops::rmsnorm_fp4_quantize);
  define_dispatched(ops, "fp4_matmul_forward", &my_ops::fp4_matmul_forward);
  define_dispatched(ops, "fp4_matmul_pair_forward", &my_ops::fp4_matmul_pair_forward);
  define_dispatched(ops, "fp4_matmul_backward_A", &my_ops::fp4_matmul_backward_A);
  define_dispatched(ops, "fp4_matmul_backward_B", &my_ops::fp4_matmul_backward_B);
  define_dispatched(ops, "fp4_matmul_pair_backward", &my_ops::fp4_matmul_pair_backward);
  define_dispatched(ops, "fp4_linear_forward", &my_ops::fp4_linear_forward);
}
