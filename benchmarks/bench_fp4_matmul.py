"""my_ops.fp4_linear and fp4_matmul beside torch's products in bfloat16.

    python benchmarks/bench_fp4_matmul.py [results.json]    # and results.png, with matplotlib

Operations: 2 M N K for a product. The bytes of fp4_linear at small M are those of the weight: 4.5
bits an element in NVFP4, 4.25 in MXFP4, 16 in bfloat16. On a GPU a call runs inside a CUDA graph
and the weights of the calls rotate through more memory than L2 holds.
"""

import json
import sys
from pathlib import Path

import torch
from common import DEVICE, call_overhead, check, measure, print_header, print_row
from torch.nn import functional as F

import my_ops

CUDA = DEVICE == "cuda"
SIZE = 8192 if CUDA else 512
ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if CUDA else (1, 16, 128)
LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192)) if CUDA else ((256, 512),)
ROTATED_BYTES = 300 << 20 if CUDA else 1  # six times the L2 of an H200


def seconds_of(function, weights) -> float:
    """Of function(weight), in turn over the weights."""
    if not CUDA:
        return measure(lambda: [function(w) for w in weights]) / len(weights)
    function(weights[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            function(weight)
    return measure(graph.replay) / len(weights)


def copies_of(weight: torch.Tensor) -> list[torch.Tensor]:
    return [weight] + [weight.clone() for _ in range(ROTATED_BYTES // weight.nbytes)]


def layer(N: int, K: int, rows, dtype: torch.dtype) -> dict[str, dict[int, float]]:
    """Microseconds of a layer by library and number of rows of x."""
    print_header(
        f"linear, {str(dtype)[6:]} x [M, {K}], weight [{N}, {K}], us",
        "M",
        "nvfp4",
        "mxfp4",
        "torch",
        "nvfp4 TFLOP/s",
    )
    dense = torch.randn(N, K, dtype=dtype, device=DEVICE) / K**0.5
    weights = {"torch": copies_of(dense)}
    for format in ("nvfp4", "mxfp4"):
        weights[format] = copies_of(my_ops.fp4_quantize(dense, format))
    times = {name: {} for name in ("nvfp4", "mxfp4", "torch")}
    for M in rows:
        x = torch.randn(M, K, dtype=dtype, device=DEVICE)
        for name in times:
            function = F.linear if name == "torch" else my_ops.fp4_linear
            w = weights[name][0]
            wide = w.float() if name == "torch" else w.dequantize(torch.float32)
            check(function(x, w), F.linear(x.float(), wide))
            times[name][M] = seconds_of(lambda w, x=x, f=function: f(x, w), weights[name]) * 1e6
        print_row(M, *(t[M] for t in times.values()), 2e-6 * M * N * K / times["nvfp4"][M])
    return times


def linear() -> dict:
    results = {}
    for dtype in (torch.bfloat16, torch.float16):
        results[f"{SIZE} x {SIZE} {str(dtype)[6:]}"] = layer(SIZE, SIZE, ROWS, dtype)
    for N, K in LAYERS:
        results[f"{N} x {K} bfloat16"] = layer(N, K, ROWS[::3], torch.bfloat16)
    return results


def picture(results: dict, path: Path) -> None:
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    name, times = next(iter(results.items()))
    for library, by_rows in times.items():
        pyplot.plot(list(by_rows), list(by_rows.values()), marker="o", label=library)
    pyplot.loglog(base=2)
    pyplot.xlabel("rows of x")
    pyplot.ylabel("us")
    pyplot.title(f"linear, {name}")
    pyplot.legend()
    pyplot.savefig(path, dpi=150)


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


def main() -> None:
    results = linear()
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.write_text(json.dumps(results, indent=1))
        picture(results, path.with_suffix(".png"))
    product()
    overhead()


if __name__ == "__main__":
    main()
