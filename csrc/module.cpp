// The compiled module `my_ops._C`: the kernel-level functions, without autograd.
// This is the only file that includes torch/extension.h (23 s to compile, narrow headers 5 s).
#include <torch/extension.h>

#include "square/square.h"

namespace {

using ReleaseGil = pybind11::call_guard<pybind11::gil_scoped_release>;
using pybind11::arg;

at::Tensor square_(at::Tensor x) {
  my_ops::square_inplace(x);
  return x;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module_) {
  module_.doc() = "Kernel-level functions of my_ops. They record no gradients; use my_ops.<op>.";

  module_.def("square", &my_ops::square_forward, arg("x"), ReleaseGil());
  module_.def("square_", &square_, arg("x"), ReleaseGil());
}
