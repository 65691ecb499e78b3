"""A CUDA kernel in one Python file: written, compiled, checked.

    python examples/load_inline_square.py

`torch.utils.cpp_extension.load_inline` turns the strings below into a module with two functions:

    square(x)              y = x * x, any shape, a new tensor
    square_matrix(matrix)  matrix *= matrix, in place

Without a GPU the CPU code is checked, and the CUDA code is still compiled where nvcc is found.
For an operator with a gradient, torch.compile and a package around it, see csrc/square.
"""

import time

import torch
from jit_build import describe, devices, jit_options

# The C++ side owns every check and the choice of device, so that kernels see only good input.
CPP_SOURCE = r"""
#include <torch/csrc/Exceptions.h>  // these two bind functions of tensors to Python;
#include <torch/csrc/utils/pybind.h>  // torch/extension.h would take twice as long

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

// y[i] = x[i]^2; both contiguous, on one device, not empty. x and y may be the same memory.
void square_cpu(const at::Tensor& x, const at::Tensor& y);
#ifdef MY_OPS_WITH_CUDA
void square_cuda(const at::Tensor& x, const at::Tensor& y);
#endif

void square_cpu(const at::Tensor& x, const at::Tensor& y) {
  constexpr int64_t kGrain = 32768;  // elements that are worth a thread
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "square_cpu", [&] {
    const scalar_t* x_data = x.const_data_ptr<scalar_t>();
    scalar_t* y_data = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y_data[i] = x_data[i] * x_data[i];
    });
  });
}

void square_into(const at::Tensor& x, const at::Tensor& y) {
  if (x.numel() == 0) return;  // a launch with no blocks is an error in CUDA
  const c10::DeviceGuard guard(x.device());
#ifdef MY_OPS_WITH_CUDA
  if (x.is_cuda()) return square_cuda(x, y);
#endif
  square_cpu(x, y);
}

void check(const char* function, const char* argument, const at::Tensor& tensor) {
#ifdef MY_OPS_WITH_CUDA
  const bool device_ok = tensor.is_cpu() || tensor.is_cuda();
  const char* devices = "a CPU or CUDA tensor";
#else
  const bool device_ok = tensor.is_cpu();
  const char* devices = "a CPU tensor (this build has no CUDA code)";
#endif
  TORCH_CHECK(device_ok && tensor.layout() == at::kStrided, function, ": ", argument,
              ": expected ", devices, ", got ", tensor.device(), ", ", tensor.layout());
  TORCH_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble, function,
              ": ", argument, ": expected float32 or float64, got ", tensor.scalar_type());
  // These functions are unknown to autograd: a gradient would be lost without a word.
  TORCH_CHECK(!(at::GradMode::is_enabled() && tensor.requires_grad()), function, ": ", argument,
              ": expected a tensor that needs no gradient, got one with requires_grad=True");
}

at::Tensor square(const at::Tensor& x) {
  check("square", "x", x);
  const c10::DeviceGuard guard(x.device());
  const at::Tensor x_contiguous = x.contiguous();
  const at::Tensor y = at::empty_like(x_contiguous);
  square_into(x_contiguous, y);
  return y;
}

at::Tensor square_matrix(at::Tensor matrix) {
  check("square_matrix", "matrix", matrix);
  TORCH_CHECK(matrix.dim() == 2, "square_matrix: matrix: expected 2 dimensions, got ",
              matrix.dim());
  // Squaring a copy would leave the caller's tensor as it was, so other strides are refused.
  TORCH_CHECK(matrix.is_contiguous(),
              "square_matrix: matrix: expected a contiguous tensor, got strides ",
              matrix.strides());
  square_into(matrix, matrix);
  matrix.unsafeGetTensorImpl()->bump_version();  // autograd sees that a saved tensor has changed
  return matrix;
}
"""

# The CUDA side: one kernel for both functions, and its launch.
CUDA_SOURCE = r"""
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

// One element for each thread and turn; the loop covers what the largest grid cannot.
// In place x and y are the same pointer, so neither is __restrict__.
template <typename scalar_t>
__global__ void square_kernel(const scalar_t* x, scalar_t* y, int64_t n) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < n; i += stride) y[i] = x[i] * x[i];
}

void square_cuda(const at::Tensor& x, const at::Tensor& y) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kMaxBlocks = 1 << 20;  // enough to fill any GPU many times over
  const int64_t n = x.numel();
  const int64_t blocks = std::min((n + kThreads - 1) / kThreads, kMaxBlocks);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "square_cuda", [&] {
    square_kernel<<<blocks, kThreads, 0, stream>>>(x.const_data_ptr<scalar_t>(),
                                                   y.mutable_data_ptr<scalar_t>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}
"""


def build(options: dict):
    """The compiled module; from the cache in `build_directory` when the sources are unchanged."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(
        cpp_sources=[CPP_SOURCE],
        cuda_sources=[CUDA_SOURCE] if options["with_cuda"] else [],
        functions=["square", "square_matrix"],
        no_implicit_headers=True,  # the sources name the few that they need
        **options,
    )


def check_values(module, device: str) -> None:
    """Both functions against torch: dtypes, strides, an empty tensor, a last block half full."""
    for dtype in (torch.float32, torch.float64):
        for x in (
            torch.randn(1000, 1001, dtype=dtype, device=device),
            torch.randn(64, 48, dtype=dtype, device=device).t(),
            torch.randn(0, 5, dtype=dtype, device=device),
        ):
            expected = x * x
            torch.testing.assert_close(module.square(x), expected, rtol=0, atol=0)

            matrix = x.clone(memory_format=torch.contiguous_format)
            version = matrix._version
            assert module.square_matrix(matrix) is matrix
            torch.testing.assert_close(matrix, expected, rtol=0, atol=0)
            assert matrix._version > version, "autograd was not told of the change"


def check_errors(module, device: str) -> list[str]:
    """Bad input raises, names the argument, and leaves it as it was. Returns the messages."""
    matrix = torch.randn(4, 6, device=device)
    before = matrix.clone()
    messages = []
    for function, argument in (
        (module.square, matrix.int()),
        (module.square, matrix.clone().requires_grad_()),
        (module.square_matrix, matrix[0]),
        (module.square_matrix, matrix.t()),
        (module.square_matrix, matrix.half()),
    ):
        try:
            function(argument)
        except RuntimeError as error:
            messages.append(str(error).splitlines()[0])
        else:
            raise AssertionError(f"{function} accepted {argument}")
    torch.testing.assert_close(matrix, before, rtol=0, atol=0)
    return messages


def main() -> None:
    options = jit_options("load_inline_square")
    print(f"Building {describe(options)} ...", flush=True)
    start = time.perf_counter()
    module = build(options)
    print(f"  {time.perf_counter() - start:.1f} s (unchanged sources are not built again)\n")

    for device in devices(options):
        check_values(module, device)
        messages = check_errors(module, device)
        print(f"square, square_matrix on {device}: equal to torch, bit for bit")
        print("Bad input raises:", *messages, sep="\n  ")
    if devices(options) == ["cpu"]:
        fate = "compiled, not run" if options["with_cuda"] else "left out"
        print(f"\nNo GPU here: the CUDA kernel was {fate}.")


if __name__ == "__main__":
    main()
