"""python -m my_ops: what is installed, whether it fits, and whether the operators are right here.

Prints the versions that _C was built for and that are running, the GPUs and whether _C has code for
them, and a check of each operator against PyTorch on each device, in seconds. Exits with 1 if one
fails. The page to put in a bug report.
"""

from __future__ import annotations

import platform
import sys
import time

import torch

import my_ops
from my_ops import _build_info
from my_ops._load import REBUILD


def has_code_for(capability: tuple[int, int], architectures: str) -> bool:
    """Whether binaries for `architectures`, TORCH_CUDA_ARCH_LIST's syntax, run on a GPU.

    Code for 8.0 runs on every 8.x from there on, code for 9.0a only on 9.0, and PTX (+PTX) of an
    architecture without a letter is compiled for every later GPU when it is loaded.
    """
    for architecture in architectures.replace(" ", ";").split(";"):
        name, ptx, _ = architecture.partition("+PTX")
        own = tuple(int(number) for number in name.rstrip("af").split("."))
        if name.endswith("a"):
            fits = capability == own
        else:
            fits = (capability[0] == own[0] and capability >= own) or (
                bool(ptx) and capability >= own
            )
        if fits:
            return True
    return False


def _relative_error(actual, expected) -> float:
    actual, expected = actual.detach().double(), expected.detach().double()
    return ((actual - expected).norm() / expected.norm()).item()


def _gradient(function, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    function(*inputs).square().sum().backward()
    return torch.cat([x.grad.flatten() for x in inputs])


def checks(device: str):
    """(name, relative error, bound) of each operator, forward and backward, against float64."""
    generator = torch.Generator().manual_seed(0)
    x, b = (torch.randn(64, 64, generator=generator).to(device) for _ in range(2))
    weight = torch.randn(64, generator=generator).to(device)
    wide = [t.double() for t in (x, b, weight)]

    def norm(x, weight):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)

    bound = 1e-5
    for name, ours, theirs, arguments in (
        ("square", my_ops.square, torch.square, (0,)),
        ("rmsnorm", my_ops.rmsnorm, norm, (0, 2)),
        ("matmul", my_ops.matmul, torch.matmul, (0, 1)),
    ):
        narrow = [(x, b, weight)[i] for i in arguments]
        reference = [wide[i] for i in arguments]
        yield name, _relative_error(ours(*narrow), theirs(*reference)), bound
        errors = _gradient(ours, *narrow), _gradient(theirs, *reference)
        yield f"{name} backward", _relative_error(*errors), bound
    y, total = my_ops.add_rmsnorm(x, b, weight)
    yield "add_rmsnorm", _relative_error(y, norm(total.double(), wide[2])), bound
    for format in ("nvfp4", "mxfp4"):
        q = my_ops.fp4_quantize(x, format)
        bytes_equal = torch.equal(q.packed.cpu(), my_ops.fp4_quantize(x.cpu(), format).packed)
        yield f"fp4_quantize {format}", 0.0 if bytes_equal else 1.0, 0.0
        values = my_ops.fp4_dequantize(q, torch.float32).double()
        yield f"fp4_dequantize {format}", _relative_error(values, wide[0]), 0.2
        yield (
            f"fp4_linear {format}",
            _relative_error(my_ops.fp4_linear(b, q), wide[1] @ values.t()),
            bound,
        )
        product = my_ops.fp4_matmul(q, q.t(), format)
        yield f"fp4_matmul {format}", _relative_error(product, values @ values.t()), bound


def main() -> int:
    print(f"my_ops {my_ops.__version__} in {my_ops.__path__[0]}")
    print(f"  Python {platform.python_version()}, {platform.platform()}")
    print(f"  torch  built for {_build_info.torch}, running {torch.__version__}")
    print(f"  CUDA   built for {_build_info.cuda or 'none'}, running {torch.version.cuda or '-'}")
    print(f"  _C     has code for {_build_info.architectures or 'the CPU alone'}")
    failed = False
    devices = ["cpu"]
    for i in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(i)
        name = f"{torch.cuda.get_device_name(i)} (sm_{capability[0]}{capability[1]})"
        if _build_info.cuda and has_code_for(capability, _build_info.architectures):
            print(f"  cuda:{i} {name}")
            if capability == (9, 0) and "9.0a" not in _build_info.architectures:
                print(f"    without its tensor-core kernels; TORCH_CUDA_ARCH_LIST=9.0a {REBUILD}")
            devices.append(f"cuda:{i}")
        else:
            failed = True
            wanted = f"{capability[0]}.{capability[1]}{'a' if capability[0] >= 9 else ''}"
            print(f"  cuda:{i} {name}: no code for it; TORCH_CUDA_ARCH_LIST={wanted} {REBUILD}")
    if len(devices) == 1 and not failed:
        print("  no GPU is visible")
    for device in devices:
        start = time.perf_counter()
        wrong = []
        for name, error, bound in checks(device):
            if not error <= bound:
                wrong.append(
                    f"  {device}: {name}: relative error {error:.1e}, expected {bound:.0e}"
                )
        seconds = time.perf_counter() - start
        print(f"  {device}: {'WRONG' if wrong else 'all operators are right'} ({seconds:.1f} s)")
        print("".join(line + "\n" for line in wrong), end="")
        failed |= bool(wrong)
    if failed:
        print(f"To rebuild, in the source folder: {REBUILD}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
