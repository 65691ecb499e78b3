"""my_ops.square beside torch.square and a copy.

    python benchmarks/bench_square.py [--quick]

The bytes of a case stand in its docstring; square costs nothing but them.
"""

import peers
import torch
from bars import of_copy
from suite import Case, Lazy, Suite

import my_ops

suite = Suite("square")

LARGE = {"gpu": [1 << 31], "gpu quick": [1 << 28], "cpu": [1 << 26], "cpu quick": [1 << 12]}
DTYPES = [torch.float32, torch.bfloat16]


def check(expected):
    """Every result is torch's, bit for bit: each is rounded once."""

    def same(actual):
        assert torch.equal(actual, expected), "differs from torch's"

    return same


@suite.group(dtype=DTYPES, nbytes=LARGE)
def forward(device, dtype, nbytes):
    """2 nbytes: x is read, y written."""
    x = torch.randn(nbytes // dtype.itemsize, dtype=dtype, device=device)
    functions = {"my_ops": lambda: my_ops.square(x), "torch": lambda: torch.square(x)}
    return Case(functions, check(torch.square(x)), bytes=2 * nbytes, copy=x, bars=[of_copy(0.97)])


@suite.group(dtype=DTYPES, nbytes=LARGE)
def in_place(device, dtype, nbytes):
    """2 nbytes: x is read and written."""
    x = torch.ones(nbytes // dtype.itemsize, dtype=dtype, device=device)  # squared it stays
    functions = {"my_ops": lambda: my_ops.square_(x), "torch": lambda: x.square_()}
    return Case(functions, check(x.clone()), bytes=2 * nbytes, copy=x, bars=[of_copy(0.97)])


@suite.group(dtype=DTYPES, nbytes=LARGE)
def backward(device, dtype, nbytes):
    """3 nbytes: grad and x are read, grad_x written."""
    x = torch.randn(nbytes // dtype.itemsize, dtype=dtype, device=device)
    grad = torch.randn_like(x)
    functions = {
        "my_ops": lambda: torch.ops.my_ops.square_backward(grad, x),
        "torch": lambda: gradient(grad, x),
    }
    if device != "cpu":
        fused = peers.compiled(device, gradient)
        functions["torch.compile"] = Lazy(lambda: lambda: fused(grad, x))
    return Case(functions, check(gradient(grad, x)), bytes=3 * nbytes, copy=x)


def gradient(grad, x):
    """torch has no kernel of its own for it."""
    return grad * 2 * x


if __name__ == "__main__":
    suite.main()
