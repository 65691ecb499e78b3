"""my_ops.fp4_linear and fp4_matmul beside torch's products in bfloat16.

    python benchmarks/bench_fp4_matmul.py

Operations: 2 M N K for a product. The bytes of fp4_linear at small M are those of the weight: 4.5
bits an element in NVFP4, 4.25 in MXFP4, 16 in bfloat16. On a GPU the weights of a call rotate
through more memory than L2 holds.
"""

import itertools

import torch
from common import DEVICE, call_overhead, check, measure, print_header, print_row
from torch.nn import functional as F

import my_ops

SIZE = 8192 if DEVICE == "cuda" else 512
ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 4096) if DEVICE == "cuda" else (1, 16, 128)
COPIES = 8 if DEVICE == "cuda" else 1  # of 38 MB each, against an L2 of 50 MB


def linear() -> None:
    print_header(
        f"fp4_linear, bfloat16 x [M, {SIZE}], weight [{SIZE}, {SIZE}]",
        "M",
        "nvfp4 us",
        "mxfp4 us",
        "torch us",
        "nvfp4 TFLOP/s",
    )
    weights = [
        torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device=DEVICE) / SIZE**0.5
        for _ in range(COPIES)
    ]
    quantized = {
        format: [my_ops.fp4_quantize(w, format) for w in weights] for format in ("nvfp4", "mxfp4")
    }
    for rows in ROWS:
        x = torch.randn(rows, SIZE, dtype=torch.bfloat16, device=DEVICE)
        seconds = {}
        for format, tensors in quantized.items():
            check(
                my_ops.fp4_linear(x, tensors[0]),
                F.linear(x.float(), tensors[0].dequantize(torch.float32)),
            )
            turn = itertools.cycle(tensors)
            seconds[format] = measure(lambda x=x, turn=turn: my_ops.fp4_linear(x, next(turn)))
        turn = itertools.cycle(weights)
        torchs = measure(lambda x=x, turn=turn: F.linear(x, next(turn)))
        rate = 2 * rows * SIZE * SIZE / seconds["nvfp4"]
        print_row(rows, seconds["nvfp4"] * 1e6, seconds["mxfp4"] * 1e6, torchs * 1e6, rate / 1e12)


def product() -> None:
    print_header(
        "fp4_matmul of dense bfloat16 operands, quantization included",
        "M = N = K, case",
        "nvfp4 TFLOP/s",
        "torch TFLOP/s",
    )
    for size in (SIZE // 2, SIZE):
        a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        grad = torch.randn(size, size, dtype=torch.bfloat16, device=DEVICE)
        qa, qb = my_ops.fp4_quantize(a), my_ops.fp4_quantize(b, axis=0)
        wide_a, wide_b = qa.dequantize(torch.float32), qb.dequantize(torch.float32)
        check(my_ops.fp4_matmul(a, b), wide_a @ wide_b)
        check(my_ops.fp4_matmul(qa, qb), wide_a @ wide_b)
        leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
        y = my_ops.fp4_matmul(*leaves)
        grad_a, grad_b = torch.autograd.grad(y, leaves, grad, retain_graph=True)
        check(grad_a, grad.float() @ wide_b.t())
        check(grad_b, wide_a.t() @ grad.float())
        cases = {
            "forward": (2, lambda a=a, b=b: my_ops.fp4_matmul(a, b), lambda a=a, b=b: a @ b),
            "operands quantized before": (
                2,
                lambda qa=qa, qb=qb: my_ops.fp4_matmul(qa, qb),
                lambda a=a, b=b: a @ b,
            ),
            "both gradients": (
                4,
                lambda y=y, leaves=leaves, grad=grad: torch.autograd.grad(
                    y, leaves, grad, retain_graph=True
                ),
                lambda a=a, b=b, grad=grad: (grad @ b.t(), a.t() @ grad),
            ),
        }
        for name, (operations, ours, torchs) in cases.items():
            rates = [operations * size**3 / measure(f) / 1e12 for f in (ours, torchs)]
            print_row(f"{size}, {name}", *rates)


def overhead() -> None:
    print_header("host time of a call, M = N = K = 64, bfloat16", "case", "my_ops us", "torch us")
    x, w = (torch.randn(64, 64, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    q = my_ops.fp4_quantize(w)
    for name, input_ in (("no gradient", x), ("gradient of x", x.clone().requires_grad_())):
        torchs = call_overhead(lambda x=input_: F.linear(x, w)) * 1e6
        print_row(
            f"fp4_linear, {name}",
            call_overhead(lambda x=input_: my_ops.fp4_linear(x, q)) * 1e6,
            torchs,
        )
        print_row(
            f"fp4_matmul, {name}",
            call_overhead(lambda x=input_: my_ops.fp4_matmul(x, w)) * 1e6,
            torchs,
        )


if __name__ == "__main__":
    linear()
    product()
    overhead()
