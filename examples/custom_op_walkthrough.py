"""A custom operator from its kernel to a compiled model, in one file to read from top to bottom.

    python examples/custom_op_walkthrough.py

The operator is softcap(x, cap) = cap * tanh(x / cap), which keeps logits between -cap and cap. Five
steps, each of them checked when the program runs:

    1. kernels for CPU and CUDA, and the C++ function that checks, allocates and calls them
    2. the schema: what makes it an operator, torch.ops.walkthrough.softcap
    3. in Python, a fake for tracing and the gradient
    4. a model with it, compiled into one graph for every batch size
    5. the model exported, without its Python

Without a GPU the CUDA code is still compiled where nvcc is found. csrc/square is such an operator
in a package, with its tests: CONTRIBUTING.md copies it.
"""

import warnings

import torch
from jit_build import describe, devices, jit_options
from torch import Tensor, nn

# ---- 1. Kernels ----------------------------------------------------------------------------------

# One thread for each element. Indices have 64 bits; the launch takes PyTorch's current stream and
# is checked, or an error would show up in some later call.
CUDA_SOURCE = r"""
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

template <typename scalar_t>
__global__ void softcap_kernel(const scalar_t* x, scalar_t* y, scalar_t cap, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = cap * tanh(x[i] / cap);
}

void softcap_cuda(const at::Tensor& x, const at::Tensor& y, double cap) {
  constexpr int64_t kThreads = 256;
  const int64_t blocks = (x.numel() + kThreads - 1) / kThreads;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "softcap", [&] {
    softcap_kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.const_data_ptr<scalar_t>(), y.mutable_data_ptr<scalar_t>(), static_cast<scalar_t>(cap),
        x.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}
"""

# The C++ side owns every check and the allocation, so that kernels see only good input.
CPP_SOURCE = r"""
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

void softcap_cpu(const at::Tensor& x, const at::Tensor& y, double cap) {
  constexpr int64_t kGrain = 4096;  // elements that are worth a thread
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "softcap", [&] {
    const auto* x_data = x.const_data_ptr<scalar_t>();
    auto* y_data = y.mutable_data_ptr<scalar_t>();
    const auto c = static_cast<scalar_t>(cap);
    at::parallel_for(0, x.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y_data[i] = c * std::tanh(x_data[i] / c);
    });
  });
}

void softcap_cuda(const at::Tensor& x, const at::Tensor& y, double cap);

template <void kernel(const at::Tensor& x, const at::Tensor& y, double cap)>
at::Tensor softcap(const at::Tensor& x, double cap) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble,
              "softcap: x: expected float32 or float64, got ", x.scalar_type());
  TORCH_CHECK(cap > 0, "softcap: cap: expected a positive number, got ", cap);
  const c10::DeviceGuard guard(x.device());  // x need not be on the current device
  const at::Tensor dense = x.contiguous();
  at::Tensor y = at::empty_like(dense);
  if (y.numel() > 0) kernel(dense, y, cap);  // a launch without blocks is an error
  return y;
}

// ---- 2. The operator ----
// The dispatcher chooses by the device of x, and raises for a device that has no kernel.

TORCH_LIBRARY(walkthrough, library) { library.def("softcap(Tensor x, float cap) -> Tensor"); }
TORCH_LIBRARY_IMPL(walkthrough, CPU, library) { library.impl("softcap", &softcap<softcap_cpu>); }
#ifdef MY_OPS_WITH_CUDA
TORCH_LIBRARY_IMPL(walkthrough, CUDA, library) { library.impl("softcap", &softcap<softcap_cuda>); }
#endif
"""


def build(options: dict) -> None:
    from torch.utils.cpp_extension import load_inline

    load_inline(
        cpp_sources=[CPP_SOURCE],
        cuda_sources=[CUDA_SOURCE] if options["with_cuda"] else [],
        is_python_module=False,  # loading it registers the operator; there is nothing to import
        no_implicit_headers=True,
        **options,
    )


# ---- 3. What Python adds -------------------------------------------------------------------------


def softcap(x: Tensor, cap: float) -> Tensor:
    """``cap * tanh(x / cap)``, elementwise, contiguous."""
    return torch.ops.walkthrough.softcap(x, cap)


def register() -> None:
    @torch.library.register_fake("walkthrough::softcap")
    def fake(x, cap):
        """The shape, dtype and strides of the result, for tracing: no memory is touched."""
        return x.new_empty(x.shape)

    def save(ctx, inputs, output):
        _, ctx.cap = inputs
        ctx.save_for_backward(output)

    def backward(ctx, grad):
        # d tanh = 1 - tanh^2. Written in PyTorch it can be differentiated again, and Inductor fuses
        # it with its neighbours; a kernel of its own is worth it where a benchmark says so.
        (y,) = ctx.saved_tensors
        return grad * (1 - (y / ctx.cap).square()), None

    torch.library.register_autograd("walkthrough::softcap", backward, setup_context=save)


def check_operator(device: str) -> None:
    for x in (
        torch.randn(100, 301, device=device) * 10,
        torch.randn(6, 4, device=device, dtype=torch.float64).t(),
        torch.randn(0, 3, device=device),
    ):
        torch.testing.assert_close(softcap(x, 3.0), 3.0 * torch.tanh(x / 3.0))
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(softcap, (x, 2.0))
    assert torch.autograd.gradgradcheck(softcap, (x, 2.0))
    # Schema, fake and gradient against the real operator, eager and traced.
    torch.library.opcheck(torch.ops.walkthrough.softcap.default, (x, 2.0))
    try:
        softcap(x, -1.0)
    except RuntimeError as error:
        print("Bad input raises:", str(error).splitlines()[0])
    else:
        raise AssertionError("softcap accepted a negative cap")


# ---- 4. and 5. In a model ------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(8, 32)
        self.logits = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return softcap(self.logits(torch.relu(self.hidden(x))), 5.0)


def check_model(device: str) -> None:
    model = Classifier().to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for step in range(60):
        x = torch.randn(32 + step % 3, 8, device=device)
        target = (x.sum(1) > 0).long()
        # Another batch size is no reason to compile again: that would raise here.
        with torch.compiler.set_stance("fail_on_recompile" if step else "default"):
            loss = nn.functional.cross_entropy(compiled(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    torch.testing.assert_close(compiled(x), model(x))
    print(f"  compiled once for 3 batch sizes; loss {losses[0]:.2f} -> {losses[-1]:.2f}")

    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(x[:5]), model(x[:5]))
    calls = [str(node.target) for node in program.graph.nodes if "walkthrough" in str(node.target)]
    print(f"  exported with {', '.join(calls)}")


def main() -> None:
    # The compiler's advice on GPUs; eager and compiled are compared in true FP32.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    torch.manual_seed(0)
    options = jit_options("custom_op_walkthrough")
    print(f"Building {describe(options)} ...", flush=True)
    build(options)
    register()
    for device in devices(options):
        check_operator(device)
        print(f"softcap on {device}: values, gradients, schema and fake are right")
        check_model(device)
    if devices(options) == ["cpu"]:
        fate = "compiled, not run" if options["with_cuda"] else "left out"
        print(f"No GPU here: the CUDA kernel was {fate}.")


if __name__ == "__main__":
    main()
