"""my_ops.rmsnorm and add_rmsnorm beside torch, torch.compile, Liger, QuACK and a copy.

    python benchmarks/bench_rmsnorm.py [--quick]

The weight and its gradient are small beside the rows, and are not counted.
"""

import peers
import torch
from bars import of_copy, speed
from suite import Case, Lazy, Suite, close, rotations

import my_ops

EPS = 1e-6
WIDTHS = [256, 1024, 4096, 8192, 16384, 65536, 131072, 262144]
TWO_DTYPES = [torch.bfloat16, torch.float32]
ALL_DTYPES = {
    "gpu": [torch.bfloat16, torch.float16, torch.float32],
    "gpu quick": [torch.bfloat16],
    "cpu": TWO_DTYPES,
    "cpu quick": TWO_DTYPES,
}

ELEMENTS = {"gpu": [1 << 29], "gpu quick": [1 << 28], "cpu": [1 << 24], "cpu quick": [1 << 11]}
LARGE = {
    "gpu": WIDTHS,
    "gpu quick": [1024, 16384, 131072],
    "cpu": [4096],
    "cpu quick": [64],
}
ODD = {"gpu": [111, 769, 5125], "gpu quick": [769], "cpu quick": [37]}
VIEWS = {"gpu": [3584], "gpu quick": [3584], "cpu quick": [32]}
SMALL_ROWS = {"gpu": [1, 8, 64, 256, 512], "gpu quick": [1, 512], "cpu": [1], "cpu quick": [1]}
SMALL_WIDTHS = {"gpu": [4096, 8192], "gpu quick": [4096], "cpu": [4096], "cpu quick": [64]}

suite = Suite("rmsnorm")


def my_ops_rmsnorm(device, eps):
    return lambda x, weight: my_ops.rmsnorm(x, weight, eps)


def my_ops_add_rmsnorm(device, eps):
    return lambda x, residual, weight: my_ops.add_rmsnorm(x, residual, weight, eps)


NORMS = {
    "my_ops": my_ops_rmsnorm,
    "torch": peers.torch_rms_norm,
    "torch.compile": peers.compiled_rms_norm,
    "liger": peers.liger_rms_norm,
    "quack": peers.quack_rms_norm,
}
# Each takes seconds to compile for a width and a dtype: not all of them everywhere.
OTHERS = {torch.bfloat16: ["torch.compile", "liger", "quack"], torch.float32: ["liger", "quack"]}
ADD_NORMS = {
    "my_ops": my_ops_add_rmsnorm,
    "torch": peers.torch_add_rms_norm,
    "torch.compile": peers.compiled_add_rms_norm,
    "liger": peers.liger_add_rms_norm,
    "quack": peers.quack_add_rms_norm,
}


def tensors(device, dtype, H, elements, count, shift=0):
    """`count` matrices, which begin `shift` elements into an allocation, and a weight."""
    rows = elements // H
    made = [
        torch.randn(rows * H + shift, device=device, dtype=dtype)[shift:].view(rows, H)
        for _ in range(count)
    ]
    return *made, torch.randn(H, dtype=dtype, device=device)


def lazily(makers, x, prepare):
    """prepare(the function of each library), for the dtype and device of x."""
    names = ["my_ops", "torch"]
    if x.device.type != "cpu":
        names += OTHERS.get(x.dtype, ())
    return {
        name: Lazy(lambda make=makers[name]: prepare(make(x.device.type, EPS))) for name in names
    }


def forwards(makers, *args):
    return lazily(makers, args[0], lambda norm: lambda: norm(*args))


def backwards(makers, grads, *args):
    """Each library's backward through autograd, from the graph that its forward left."""

    def prepare(norm):
        leaves = [arg.detach().requires_grad_() for arg in args]
        outputs = norm(*leaves)
        return lambda: torch.autograd.grad(outputs, leaves, grads, retain_graph=True)

    return lazily(makers, args[0], prepare)


def exact(x, weight):
    """In float64, of the first and the last rows."""
    return torch.nn.functional.rms_norm(ends(x).double(), weight.shape, weight.double(), EPS)


def ends(x):
    return torch.cat([x[:32], x[-32:]])


def exact_gradients(grad, x, weight):
    """That of x for the first and last rows; that of the weight is the sum over all, in pieces."""
    weight_gradient = torch.zeros_like(weight, dtype=torch.float64)
    step = max(1, (1 << 26) // x.shape[1])
    for rows, grads in zip(x.split(step), grad.split(step), strict=True):
        rows = rows.double()
        rows *= torch.rsqrt(rows.square().mean(1, keepdim=True) + EPS)
        weight_gradient += rows.mul_(grads).sum(0)
    leaf = ends(x).double().requires_grad_()
    y = torch.nn.functional.rms_norm(leaf, weight.shape, weight.double(), EPS)
    return torch.autograd.grad(y, leaf, ends(grad).double())[0], weight_gradient


@suite.group(H=SMALL_WIDTHS, rows=SMALL_ROWS)
def small(device, H, rows):
    """4 H rows: bfloat16 x is read, y written."""
    calls = rotations(2 * H * rows, device)
    inputs = torch.randn(calls, rows, H, dtype=torch.bfloat16, device=device).unbind()
    weight = torch.randn(H, dtype=torch.bfloat16, device=device)
    expected = exact(inputs[0], weight)
    return Case(
        lazily(NORMS, inputs[0], lambda norm: lambda i: norm(inputs[i], weight)),
        lambda y: close(ends(y), expected),
        bytes=4 * H * rows,
        how="graph",
        calls=calls,
        bars=[speed("torch.compile", 1)],
    )


@suite.group(dtype=ALL_DTYPES, H=LARGE, elements=ELEMENTS)
def forward(device, dtype, H, elements, bound=0.96, shift=0):
    """2 x.nbytes: x is read, y written."""
    x, weight = tensors(device, dtype, H, elements, 1, shift)
    expected = exact(x, weight)
    bars = [of_copy(bound), speed("torch", 2, on="cpu")]
    return Case(
        forwards(NORMS, x, weight),
        lambda y: close(ends(y), expected),
        bytes=2 * x.nbytes,
        copy=x,
        bars=bars,
    )


@suite.group(dtype=ALL_DTYPES, H=LARGE, elements=ELEMENTS)
def backward(device, dtype, H, elements, bound=0.92, shift=0):
    """3 x.nbytes: grad and x are read, grad_x written."""
    x, grad, weight = tensors(device, dtype, H, elements, 2, shift)
    expected = exact_gradients(grad, x, weight)

    def check(actual):
        close(ends(actual[0]), expected[0])
        close(actual[1], expected[1])

    bars = [of_copy(bound), speed("torch", 2, on="cpu")]
    return Case(backwards(NORMS, [grad], x, weight), check, bytes=3 * x.nbytes, copy=x, bars=bars)


@suite.group(dtype=TWO_DTYPES, H=LARGE, elements=ELEMENTS)
def add_forward(device, dtype, H, elements):
    """4 x.nbytes: x and residual are read, y and the sum written."""
    x, residual, weight = tensors(device, dtype, H, elements, 2)
    total = x + residual
    expected = exact(total, weight)

    def check(actual):
        close(ends(actual[0]), expected)
        close(ends(actual[1]), ends(total))

    return Case(
        forwards(ADD_NORMS, x, residual, weight),
        check,
        bytes=4 * x.nbytes,
        copy=x,
        bars=[of_copy(0.92)],
    )


@suite.group(dtype=TWO_DTYPES, H=LARGE, elements=ELEMENTS)
def add_backward(device, dtype, H, elements):
    """4 x.nbytes: both gradients and the sum are read, the gradient of the sum written."""
    x, residual, grad, more, weight = tensors(device, dtype, H, elements, 4)
    total = x + residual
    grad_x, grad_weight = exact_gradients(grad, total, weight)
    grad_x += ends(more)

    def check(actual):
        close(ends(actual[0]), grad_x)
        close(ends(actual[1]), grad_x)
        close(actual[2], grad_weight)

    functions = backwards(ADD_NORMS, [grad, more], x, residual, weight)
    return Case(functions, check, bytes=4 * x.nbytes, copy=x, bars=[of_copy(0.92)])


@suite.group(dtype=TWO_DTYPES, H=ODD, elements=ELEMENTS)
def odd_width_forward(device, dtype, H, elements):
    """2 x.nbytes: x is read, y written."""
    return forward(device, dtype, H, elements, bound=0.70)


@suite.group(dtype=TWO_DTYPES, H=ODD, elements=ELEMENTS)
def odd_width_backward(device, dtype, H, elements):
    """3 x.nbytes: grad and x are read, grad_x written."""
    return backward(device, dtype, H, elements, bound=0.70)


@suite.group(dtype=TWO_DTYPES, H=VIEWS, elements=ELEMENTS)
def odd_element_forward(device, dtype, H, elements):
    """2 x.nbytes: x, whose rows begin at an odd element, is read, y written."""
    return forward(device, dtype, H, elements, bound=0.70, shift=1)


@suite.group(dtype=TWO_DTYPES, H=VIEWS, elements=ELEMENTS)
def odd_element_backward(device, dtype, H, elements):
    """3 x.nbytes: grad and x, whose rows begin at an odd element, are read, grad_x written."""
    return backward(device, dtype, H, elements, bound=0.70, shift=1)


if __name__ == "__main__":
    suite.main()
