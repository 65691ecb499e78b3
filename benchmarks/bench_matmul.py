"""my_ops.matmul beside cuBLAS (torch.mm): layouts, gradients, precisions and their errors.

    python benchmarks/bench_matmul.py [--quick]

A layout names how the operands lie in memory: N as written, T transposed. "torch" is torch.mm in
IEEE float32; "torch tf32" with TF32 allowed, as "my_ops tf32" is to be compared.
"""

import torch
from bars import Summary, speed, value_ratio
from suite import Case, Suite, Values, close
from torch.nn import functional as F

import my_ops

PRECISIONS = ("ieee", "bf16x6", "fp16x3", "tf32")
LAYOUTS = {s: ["NN", "NT", "TN", "TT"] for s in ("gpu", "cpu quick")} | {"cpu": ["NN"]}
LAYOUTS["gpu quick"] = ["NN", "TN"]
SIZES = {
    "gpu": [512, 1024, 2048, 4096, 8192],
    "gpu quick": [512, 4096],
    "cpu": [512, 1024],
    "cpu quick": [32],
}
GRADIENT_SIZES = {"gpu": [2048, 4096, 8192], "gpu quick": [4096], "cpu": [512], "cpu quick": [32]}
FLOAT64_SIZES = {"gpu": [2048, 4096, 8192], "gpu quick": [4096], "cpu": [512], "cpu quick": [32]}
ODD_SHAPES = {  # M, N, K
    "gpu": [
        (1, 4096, 4096),
        (16, 4096, 4096),
        (64, 4096, 4096),
        (4096, 16, 4096),
        (64, 64, 65536),
        (512, 512, 65536),
        (1009, 1013, 1019),
        (4099, 4093, 4099),
    ],
    "gpu quick": [(1, 4096, 4096), (64, 64, 65536), (1009, 1013, 1019)],
    "cpu": [(1, 512, 512), (509, 521, 503)],
    "cpu quick": [(1, 16, 64), (13, 17, 31)],
}
MLP_WIDTHS = {"gpu": [4096], "gpu quick": [4096], "cpu": [256], "cpu quick": [16]}
ERROR_DEPTHS = {
    "gpu": [512, 4096, 32768],
    "gpu quick": [4096],
    "cpu": [512, 4096],
    "cpu quick": [64],
}
ERROR_SIDE = {"gpu": [2048], "gpu quick": [1024], "cpu": [256], "cpu quick": [16]}
# The errors of the tensor-core precisions that are bars, by kind of input.
ERROR_BARS = {
    "ieee": ("normal", "uniform", "graded", "log-uniform"),
    "bf16x6": ("normal", "uniform", "graded", "log-uniform"),
    "fp16x3": ("normal", "uniform"),
}

LARGE = {"groups": ("square", "gradients"), "where": lambda params: params["n"] >= 2048}
suite = Suite(
    "matmul",
    [
        Summary("float32, n >= 2048", speed("torch", 1, "my_ops ieee"), **LARGE),
        Summary("float32, n >= 2048", speed("torch", 0.95, "my_ops ieee"), **LARGE, reduce="worst"),
        Summary("skinny and odd", speed("torch", 0.9, "my_ops ieee"), ["skinny and odd"]),
    ],
)


def operand(device, rows, cols, layout, dtype=torch.float32):
    if layout == "T":
        return torch.randn(cols, rows, dtype=dtype, device=device).t()
    return torch.randn(rows, cols, dtype=dtype, device=device)


def in_tf32(function):
    """function() while torch may use TF32."""

    def run():
        torch.set_float32_matmul_precision("high")
        try:
            return function()
        finally:
            torch.set_float32_matmul_precision("highest")

    return run


def product(a, b, bars=(), precisions=PRECISIONS):
    """Each precision and torch, checked against float64."""
    M, N, K = *a.shape[:-1], b.shape[1], a.shape[1]
    rows = a[:32].double() @ b.double()
    functions = {f"my_ops {p}": lambda p=p: my_ops.matmul(a, b, precision=p) for p in precisions}
    functions["torch"] = lambda: torch.mm(a, b)
    if "tf32" in precisions:
        functions["torch tf32"] = in_tf32(functions["torch"])
    bound = 1e-3 if "tf32" in precisions else None
    return Case(functions, lambda c: close(c[:32], rows, bound), flops=2 * M * N * K, bars=bars)


@suite.group(n=SIZES, layout=LAYOUTS)
def square(device, n, layout):
    """2 n^3 operations."""
    a, b = (operand(device, n, n, letter) for letter in layout)
    bars = [speed("torch tf32", 0.9, "my_ops tf32")] if n > 512 else []
    if n <= 512:
        bars += [speed("torch", 0.9, f"my_ops {p}") for p in PRECISIONS]
    if n in (4096, 8192):
        bars.append(speed("torch", 2, "my_ops bf16x6"))
        bars.append(speed("torch", 3.4 if n == 4096 else 3.7, "my_ops fp16x3"))
    return product(a, b, bars)


@suite.group(n=GRADIENT_SIZES, of=["a", "b"])
def gradients(device, n, of):
    """2 n^3 operations: grad b^T or a^T grad."""
    grad, other = (operand(device, n, n, "N") for _ in range(2))
    a, b = (grad, other.t()) if of == "a" else (other.t(), grad)
    functions = {
        "my_ops ieee": lambda: my_ops._C.matmul_backward_A(grad, other)
        if of == "a"
        else my_ops._C.matmul_backward_B(other, grad),
        "torch": lambda: torch.mm(a, b),
    }
    rows = a[:32].double() @ b.double()
    return Case(functions, lambda c: close(c[:32], rows), flops=2 * n**3)


@suite.group(shape=ODD_SHAPES, layout=LAYOUTS)
def skinny_and_odd(device, shape, layout):
    """2 M N K operations."""
    M, N, K = shape
    a, b = operand(device, M, K, layout[0]), operand(device, K, N, layout[1])
    return product(a, b, precisions=("ieee",))


@suite.group(n=FLOAT64_SIZES, layout=LAYOUTS)
def float64(device, n, layout):
    """2 n^3 operations."""
    a, b = (operand(device, n, n, letter, torch.float64) for letter in layout)
    return product(a, b, [speed("torch", 0.8, "my_ops ieee")], precisions=("ieee",))


@suite.group(width=MLP_WIDTHS)
def mlp(device, width):
    """48 width^3 operations: forward and backward of x -> silu(x w1) w2, 4 width between them."""
    x, w1, w2 = (
        operand(device, rows, cols, "N").div_(rows**0.5).requires_grad_()
        for rows, cols in ((width, width), (width, 4 * width), (4 * width, width))
    )
    grad = operand(device, width, width, "N")

    def step(product):
        y = product(F.silu(product(x, w1)), w2)
        return torch.autograd.grad(y, (x, w1, w2), grad)

    expected = step(torch.mm)
    functions = {
        f"my_ops {p}": lambda p=p: step(lambda a, b: my_ops.matmul(a, b, precision=p))
        for p in PRECISIONS
    }
    functions["torch"] = lambda: step(torch.mm)

    def check(actual):
        for ours, torchs in zip(actual, expected, strict=True):
            close(ours, torchs, 2e-3)

    bars = [speed("torch", 1.9, "my_ops bf16x6")]
    return Case(functions, check, flops=48 * width**3, bars=bars)


def inputs(device, kind, side, K):
    a, b = operand(device, side, K, "N"), operand(device, K, side, "N")
    if kind == "uniform":
        return torch.rand_like(a), torch.rand_like(b)
    if kind == "graded":  # columns of a that grow along K against rows of b that shrink
        scale = torch.exp2(torch.linspace(-20, 20, K, device=device))
        return a * scale, b / scale[:, None]
    if kind == "log-uniform":
        return tuple(x.sign() * torch.exp2(40 * torch.rand_like(x) - 20) for x in (a, b))
    return a, b


@suite.group(kind=["normal", "uniform", "graded", "log-uniform"], K=ERROR_DEPTHS, side=ERROR_SIDE)
def errors(device, kind, K, side):
    """Frobenius norm of the error over that of the product, against float64, M = N = side."""
    a, b = inputs(device, kind, side, K)
    exact = a.double() @ b.double()
    results = {f"my_ops {p}": my_ops.matmul(a, b, precision=p) for p in PRECISIONS}
    results["torch"] = torch.mm(a, b)
    bars = [
        value_ratio("torch", 1, f"my_ops {p}") for p, kinds in ERROR_BARS.items() if kind in kinds
    ]
    errors = {name: ((c - exact).norm() / exact.norm()).item() for name, c in results.items()}
    return Values(errors, "relative error", bars)


if __name__ == "__main__":
    suite.main()
