"""my_ops.matmul beside torch.mm: TFLOP/s in every layout, the gradients, skinny and odd shapes, the
tensor-core precisions and their errors.

    python benchmarks/bench_matmul.py

A product of [M, K] and [K, N] counts 2 M N K operations. torch.mm runs in IEEE FP32 (no TF32) but
for "tf32". A layout names how the operands lie in memory: N as written, T transposed.
"""

import math

import torch
from common import DEVICE, measure, print_header, print_row

import my_ops

SQUARES = (512, 1024, 2048, 4096, 8192) if DEVICE == "cuda" else (256, 512)
OTHERS = (
    [
        (1, 4096, 4096),
        (16, 4096, 4096),
        (64, 4096, 4096),
        (4096, 16, 4096),
        (64, 64, 65536),
        (512, 512, 65536),
        (1009, 1013, 1019),
        (4099, 4093, 4099),
        (8192, 1024, 512),
    ]
    if DEVICE == "cuda"
    else [(1, 512, 512), (509, 521, 503)]
)


def operand(rows, cols, transposed, dtype):
    if transposed:
        return torch.randn(cols, rows, dtype=dtype, device=DEVICE).t()
    return torch.randn(rows, cols, dtype=dtype, device=DEVICE)


def compare(name, M, N, K, ours, torchs, ratios):
    """Checks that both agree to float32's accuracy, times both, prints a row."""
    a, b = ours(), torchs()
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * math.sqrt(K))
    seconds = [measure(f) for f in (ours, torchs)]
    ratios.append(seconds[1] / seconds[0])
    rates = [2e-12 * M * N * K / s for s in seconds]
    print_row(name, *rates, ratios[-1])


def products(title, shapes, layouts, dtype=torch.float32):
    print_header(title, "M, N, K, layout", "my_ops TFLOP/s", "torch TFLOP/s", "ratio")
    ratios = []
    for M, N, K in shapes:
        for layout in layouts:
            a = operand(M, K, layout[0] == "T", dtype)
            b = operand(K, N, layout[1] == "T", dtype)
            compare(
                f"{M}, {N}, {K}, {layout}",
                M,
                N,
                K,
                lambda a=a, b=b: my_ops.matmul(a, b),
                lambda a=a, b=b: torch.mm(a, b),
                ratios,
            )
    print_summary(ratios)


def gradients(sizes):
    print_header(
        "matmul, gradients, float32", "n, gradient", "my_ops TFLOP/s", "torch TFLOP/s", "ratio"
    )
    ratios = []
    for n in sizes:
        a, b, grad = (operand(n, n, False, torch.float32) for _ in range(3))
        compare(
            f"{n}, a",
            n,
            n,
            n,
            lambda b=b, grad=grad: my_ops._C.matmul_backward_A(grad, b),
            lambda b=b, grad=grad: torch.mm(grad, b.t()),
            ratios,
        )
        compare(
            f"{n}, b",
            n,
            n,
            n,
            lambda a=a, grad=grad: my_ops._C.matmul_backward_B(a, grad),
            lambda a=a, grad=grad: torch.mm(a.t(), grad),
            ratios,
        )
    print_summary(ratios)


def tensor_core_precisions(sizes):
    """Each against torch.mm in float32, "tf32" against torch.mm in TF32."""
    for precision in ("bf16x6", "fp16x3", "tf32"):
        print_header(
            f"matmul, {precision}", "n, layout", "my_ops TFLOP/s", "torch TFLOP/s", "ratio"
        )
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        ratios = []
        for n in sizes:
            for layout in ("NN", "NT", "TN", "TT"):
                a = operand(n, n, layout[0] == "T", torch.float32)
                b = operand(n, n, layout[1] == "T", torch.float32)
                functions = (
                    lambda a=a, b=b, p=precision: my_ops.matmul(a, b, precision=p),
                    lambda a=a, b=b: torch.mm(a, b),
                )
                seconds = [measure(f) for f in functions]
                ratios.append(seconds[1] / seconds[0])
                print_row(f"{n}, {layout}", *(2e-12 * n**3 / s for s in seconds), ratios[-1])
        print_summary(ratios)
    torch.set_float32_matmul_precision("highest")


def errors(depths):
    """Frobenius norm of the error over that of the product, against float64."""
    names = ("ieee", "bf16x6", "fp16x3", "tf32")
    print_header("matmul, relative error, M = N = 2048", "inputs, K", *names, "torch")
    for K in depths:
        scale = torch.exp2(torch.linspace(-20, 20, K, device=DEVICE))
        normal = [operand(2048, K, False, torch.float32), operand(K, 2048, False, torch.float32)]
        inputs = {
            "normal": normal,
            "uniform": [torch.rand_like(x) for x in normal],
            "graded along K": [normal[0] * scale, normal[1] / scale[:, None]],
        }
        for name, (a, b) in inputs.items():
            exact = a.double() @ b.double()
            results = [my_ops.matmul(a, b, precision=p) for p in names] + [torch.mm(a, b)]
            cells = [((c - exact).norm() / exact.norm()).item() for c in results]
            print_row(f"{name}, {K}", *(f"{cell:.2e}" for cell in cells))


def mlp(width):
    """Forward and backward of x -> relu(x w1) w2 with `width` tokens."""
    x = operand(width, width, False, torch.float32).requires_grad_()
    w1 = operand(width, 4 * width, False, torch.float32).requires_grad_()
    w2 = operand(4 * width, width, False, torch.float32).requires_grad_()
    grad = operand(width, width, False, torch.float32)

    def step(product):
        y = product(product(x, w1).relu(), w2)
        return torch.autograd.grad(y, (x, w1, w2), grad)

    print_header(f"MLP {width} -> {4 * width} -> {width}, forward and backward", "", "ms", "ratio")
    baseline = measure(lambda: step(torch.mm))
    print_row("torch", baseline * 1e3, 1.0)
    for p in ("ieee", "bf16x6", "fp16x3", "tf32"):
        seconds = measure(lambda p=p: step(lambda a, b: my_ops.matmul(a, b, precision=p)))
        print_row(p, seconds * 1e3, baseline / seconds)


def print_summary(ratios):
    print_row("geometric mean", "", "", math.exp(sum(map(math.log, ratios)) / len(ratios)))
    print_row("worst", "", "", min(ratios))


if __name__ == "__main__":
    torch.set_float32_matmul_precision("highest")
    layouts = ("NN", "NT", "TN", "TT")
    products("matmul, square, float32", [(n, n, n) for n in SQUARES], layouts)
    products("matmul, skinny and odd, float32", OTHERS, layouts)
    gradients(SQUARES[-3:])
    if DEVICE == "cuda":
        tensor_core_precisions(SQUARES)
        errors((512, 4096, 32768))
        mlp(4096)
    products("matmul, square, float64", [(n, n, n) for n in SQUARES[:4]], layouts, torch.float64)
