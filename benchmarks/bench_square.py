"""my_ops.square beside torch.square: bandwidth on a large tensor, overhead on a small one.

    python benchmarks/bench_square.py

Bytes: forward and in place read x and write y (2 transfers); backward reads grad and x and writes
grad_x (3 transfers).
"""

import torch
from common import (
    DEVICE,
    call_overhead,
    copy_bytes_per_second,
    measure,
    print_header,
    print_row,
)

import my_ops

LARGE_BYTES = 2 << 30 if DEVICE == "cuda" else 64 << 20


def check(x, grad) -> None:
    """Every result is torch's, bit for bit: each is rounded once."""
    expected = torch.square(x)
    assert torch.equal(my_ops.square(x), expected)
    assert torch.equal(my_ops.square_(x.clone()), expected)
    assert torch.equal(torch.ops.my_ops.square_backward(grad, x), grad * 2 * x)


def bandwidth() -> None:
    copy = copy_bytes_per_second()
    print_header("square, bandwidth", "case", "my_ops GB/s", "torch GB/s", "my_ops/copy")
    print_row("copy", copy / 1e9, "", "")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(LARGE_BYTES // dtype.itemsize, dtype=dtype, device=DEVICE)
        grad = torch.randn_like(x)
        ones = torch.ones_like(x)  # in place, anything else would run to infinity
        check(x, grad)
        # torch has no single kernel for the gradient; its formula is grad * 2 * x.
        cases = {
            "forward": (2, lambda x=x: my_ops.square(x), lambda x=x: torch.square(x)),
            "in place": (2, lambda x=ones: my_ops.square_(x), lambda x=ones: x.square_()),
            "backward": (
                3,
                lambda x=x, grad=grad: torch.ops.my_ops.square_backward(grad, x),
                lambda x=x, grad=grad: grad * 2 * x,
            ),
        }
        for name, (transfers, ours, torchs) in cases.items():
            rates = [transfers * x.nbytes / measure(f) for f in (ours, torchs)]
            print_row(
                f"{name} {str(dtype)[6:]}",
                rates[0] / 1e9,
                rates[1] / 1e9,
                f"{100 * rates[0] / copy:.1f} %",
            )


def overhead() -> None:
    print_header(
        "square, host time of a call on [16, 1024] bfloat16", "case", "my_ops us", "torch us"
    )
    x = torch.randn(16, 1024, dtype=torch.bfloat16, device=DEVICE)
    for name, input_ in (("no gradient", x), ("gradient", x.clone().requires_grad_())):
        ours = call_overhead(lambda x=input_: my_ops.square(x))
        torchs = call_overhead(lambda x=input_: torch.square(x))
        print_row(name, ours * 1e6, torchs * 1e6)


if __name__ == "__main__":
    bandwidth()
    overhead()
