"""my_ops.rmsnorm beside torch: bandwidth over the width, small problems, overhead of a call.

    python benchmarks/bench_rmsnorm.py

Bytes: forward reads x and writes y (2 transfers); backward reads grad and x and writes grad_x (3);
add_rmsnorm reads x and residual and writes y and the sum (4), and its backward reads the gradients
of both and the sum and writes one (4). The weight is small beside them.
"""

import torch
from common import (
    DEVICE,
    call_overhead,
    check,
    copy_bytes_per_second,
    measure,
    print_header,
    print_row,
)

import my_ops

ELEMENT_BYTES = 1 << 30 if DEVICE == "cuda" else 32 << 20
OURS_BACKWARD = torch.ops.my_ops.rmsnorm_backward.default
TORCH_BACKWARD = torch.ops.aten._fused_rms_norm_backward.default
WIDTHS = [256, 1024, 4096, 8192, 16384, 65536, 131072, 262144, 111, 769, 5125]
EPS = 1e-6


def torch_add(x, residual, weight):
    total = x + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, EPS), total


def check_rows(x, grad, weight) -> None:
    """The first rows of every timed function against float64."""
    x, grad = x[:64], grad[:64]
    leaves = x.double().requires_grad_(), weight.double().requires_grad_()
    y = torch.nn.functional.rms_norm(leaves[0], weight.shape, leaves[1], EPS)
    check(my_ops.rmsnorm(x, weight, EPS), y.detach())
    expected = torch.autograd.grad(y, leaves, grad.double())
    for actual, exact in zip(OURS_BACKWARD(grad, None, x, weight, EPS, 0.0), expected, strict=True):
        check(actual, exact)
    for actual, exact in zip(
        my_ops.add_rmsnorm(x, grad, weight, EPS),
        torch_add(x.double(), grad.double(), weight.double()),
        strict=True,
    ):
        check(actual, exact)


def torch_add_backward(grad, grad_sum, x, rstd, weight):
    grad_x, grad_weight = TORCH_BACKWARD(grad, x, list(weight.shape), rstd, weight, [True, True])
    return grad_x + grad_sum, grad_weight


def bandwidth() -> None:
    copy = copy_bytes_per_second()
    print_header("rmsnorm, bandwidth", "case", "my_ops GB/s", "torch GB/s", "my_ops/copy")
    print_row("copy", copy / 1e9, "", "")
    for dtype in (torch.bfloat16, torch.float32):
        for H in WIDTHS:
            x = torch.randn(ELEMENT_BYTES // dtype.itemsize // H, H, dtype=dtype, device=DEVICE)
            grad, more = torch.randn_like(x), torch.randn_like(x)
            weight = torch.randn(H, dtype=dtype, device=DEVICE)
            check_rows(x, grad, weight)
            rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS)
            cases = {
                "forward": (
                    2,
                    lambda x=x, w=weight: my_ops.rmsnorm(x, w, EPS),
                    lambda x=x, w=weight: torch.nn.functional.rms_norm(x, w.shape, w, EPS),
                ),
                "backward": (
                    3,
                    lambda g=grad, x=x, w=weight: OURS_BACKWARD(g, None, x, w, EPS, 0.0),
                    # torch has no backward kernel for the CPU.
                    None
                    if DEVICE == "cpu"
                    else lambda g=grad, x=x, w=weight, r=rstd: TORCH_BACKWARD(
                        g, x, list(w.shape), r, w, [True, True]
                    ),
                ),
                "add backward": (
                    4,
                    lambda g=grad, m=more, x=x, w=weight: OURS_BACKWARD(g, m, x, w, EPS, 0.0),
                    None
                    if DEVICE == "cpu"
                    else lambda g=grad, m=more, x=x, w=weight, r=rstd: torch_add_backward(
                        g, m, x, r, w
                    ),
                ),
                "add": (
                    4,
                    lambda x=x, r=grad, w=weight: my_ops.add_rmsnorm(x, r, w, EPS),
                    lambda x=x, r=grad, w=weight: torch_add(x, r, w),
                ),
            }
            for name, (transfers, ours, torchs) in cases.items():
                rate = transfers * x.nbytes / measure(ours)
                torch_rate = transfers * x.nbytes / measure(torchs) if torchs else None
                print_row(
                    f"{name} {str(dtype)[6:]} H={H}",
                    rate / 1e9,
                    torch_rate / 1e9 if torch_rate else "",
                    f"{100 * rate / copy:.1f} %",
                )


def misaligned_rows() -> None:
    """Every row of this view begins at an odd element."""
    copy = copy_bytes_per_second()
    print_header("rmsnorm forward, rows at an odd element", "case", "my_ops GB/s", "my_ops/copy")
    for dtype in (torch.bfloat16, torch.float32):
        for H in (3584, 65536):
            rows = ELEMENT_BYTES // dtype.itemsize // H
            x = torch.randn(rows * H + 1, dtype=dtype, device=DEVICE)[1:].view(rows, H)
            weight = torch.randn(H, dtype=dtype, device=DEVICE)
            check(x, weight)
            rate = 2 * x.nbytes / measure(lambda x=x, w=weight: my_ops.rmsnorm(x, w, EPS))
            print_row(f"{str(dtype)[6:]} H={H}", rate / 1e9, f"{100 * rate / copy:.1f} %")


def graph_seconds(function, inputs) -> float:
    """A call on each of `inputs` in a CUDA graph, on average: no host time, and a cold cache."""
    for x in inputs[:2]:
        function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [function(x) for x in inputs]
    return measure(graph.replay) / len(outputs)


def small_problems() -> None:
    print_header("rmsnorm, bfloat16, in a CUDA graph", "case", "my_ops us", "compile us", "copy us")
    for H in (4096, 8192):
        weight = torch.randn(H, dtype=torch.bfloat16, device=DEVICE)
        for rows in (1, 8, 64, 256, 512):
            torch.compiler.reset()  # else it gives up after a few shapes
            compiled = torch.compile(torch.nn.functional.rms_norm, dynamic=False)
            inputs = torch.randn(64, rows, H, dtype=torch.bfloat16, device=DEVICE).unbind()
            times = [
                graph_seconds(lambda x, w=weight: my_ops.rmsnorm(x, w, EPS), inputs),
                graph_seconds(lambda x, w=weight, f=compiled: f(x, w.shape, w, EPS), inputs),
                graph_seconds(torch.clone, inputs),
            ]
            print_row(f"{rows} x {H}", *(seconds * 1e6 for seconds in times))


def overhead() -> None:
    print_header(
        "rmsnorm, host time of a call on [16, 1024] bfloat16", "case", "my_ops us", "torch us"
    )
    x = torch.randn(16, 1024, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.randn(1024, dtype=torch.bfloat16, device=DEVICE)
    for name, w in (("no gradient", weight), ("gradient", weight.clone().requires_grad_())):
        ours = call_overhead(lambda w=w: my_ops.rmsnorm(x, w, EPS))
        torchs = call_overhead(lambda w=w: torch.nn.functional.rms_norm(x, w.shape, w, EPS))
        print_row(name, ours * 1e6, torchs * 1e6)


if __name__ == "__main__":
    overhead()
    if DEVICE == "cuda":
        small_problems()
        misaligned_rows()
    bandwidth()
