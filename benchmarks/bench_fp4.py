"""my_ops.fp4_quantize and fp4_dequantize beside a copy and beside torch.compile of the formula.

    python benchmarks/bench_fp4.py

Bytes of an element of b bytes: x is read (b), codes (1/2) and scales (1/16 for NVFP4, 1/32 for
MXFP4) are written, or the other way round. Computing amax reads x once more.
"""

import functools

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

SIDE = 16384 if DEVICE == "cuda" else 2048
SCALE_BYTES = {"nvfp4": 1 / 16, "mxfp4": 1 / 32}


def formula(x, amax):
    """NVFP4 with a given amax in PyTorch's own operations; the same bytes on ordinary data."""
    blocks = x.float().unflatten(-1, (-1, 16))
    S = torch.full_like(amax, 2688) / amax  # 2688 / amax would round a reciprocal first
    scale = (blocks.abs().amax(-1) * (S * (1 / 6))).clamp(max=448).to(torch.float8_e4m3fn)
    scaled = blocks * (1 / (scale.float() * (1 / S)))[..., None]
    m = scaled.abs().flatten(-2)
    up = [m > 0.25, m >= 0.75, m > 1.25, m >= 1.75, m > 2.5, m >= 3.5, m > 5]
    codes = functools.reduce(torch.add, (step.to(torch.uint8) for step in up))
    codes = codes | (scaled.signbit().to(torch.uint8) << 3).flatten(-2)
    return codes[..., ::2] | (codes[..., 1::2] << 4), scale


def cases(x):
    """name: (bytes of an element, function)."""
    b = x.dtype.itemsize
    amax = torch.ops.my_ops.fp4_amax(x)
    quantize = my_ops.fp4_quantize
    compiled = torch.compile(formula)
    yield "amax", b, lambda: torch.ops.my_ops.fp4_amax(x)
    for format, options in (("nvfp4", {"amax": amax}), ("mxfp4", {})):
        given = functools.partial(quantize, x, format, **options)
        q = given()
        stored = 1 / 2 + SCALE_BYTES[format]
        yield f"{format} quantize", b + stored, given
        if format == "nvfp4":
            yield "nvfp4 quantize, torch.compile", b + stored, lambda: compiled(x, amax)
            yield "nvfp4 amax and quantize", 2 * b + stored, lambda: quantize(x)
        yield f"{format} quantize along axis 0", b + stored, functools.partial(given, axis=0)
        stochastic = functools.partial(given, rounding="stochastic")
        yield f"{format} quantize, stochastic", b + stored, stochastic
        yield f"{format} dequantize", b + stored, q.dequantize


def check_bytes(x):
    """Every kernel gives the CPU's bytes, and the formula to compare with does the same work."""
    q = my_ops.fp4_quantize(x)
    packed, scale = formula(x, q.amax)
    assert torch.equal(packed, q.packed)
    assert torch.equal(scale.view(torch.uint8), q.scale_bytes)
    assert q.amax == x.abs().max()
    for format in SCALE_BYTES:
        for options in ({}, {"axis": 0}, {"rounding": "stochastic"}):
            q, expected = (my_ops.fp4_quantize(t, format, **options) for t in (x, x.cpu()))
            assert torch.equal(q.packed.cpu(), expected.packed)
            assert torch.equal(q.scale_bytes.cpu(), expected.scale_bytes)
            assert torch.equal(q.dequantize().cpu(), expected.dequantize())
            # The noise of 4 bits; of stochastic rounding sqrt(2) times and more.
            error = (q.dequantize().float() - x.float()).norm() / x.float().norm()
            assert error < (0.2 if options.get("rounding") else 0.12)


def bandwidth() -> None:
    copy = copy_bytes_per_second()
    print_header(f"fp4, [{SIDE}, {SIDE}]", "case", "us", "GB/s", "of copy")
    print_row("copy", "", copy / 1e9, "")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.randn(SIDE, SIDE, device=DEVICE).to(dtype)
        check_bytes(x[:64])
        for name, bytes_, function in cases(x):
            seconds = measure(function)
            rate = bytes_ * x.numel() / seconds
            cells = seconds * 1e6, rate / 1e9, f"{100 * rate / copy:.1f} %"
            print_row(f"{name} {str(dtype)[6:]}", *cells)


def overhead() -> None:
    print_header("fp4, host time of a call on [16, 1024] bfloat16", "case", "us")
    x = torch.randn(16, 1024, dtype=torch.bfloat16, device=DEVICE)
    amax = torch.ops.my_ops.fp4_amax(x)
    q = my_ops.fp4_quantize(x)
    leaf = x.clone().requires_grad_()
    functions = {
        "quantize, amax given": lambda: my_ops.fp4_quantize(x, amax=amax),
        "quantize": lambda: my_ops.fp4_quantize(x),
        "quantize, gradient": lambda: my_ops.fp4_quantize(leaf, amax=amax),
        "dequantize": lambda: my_ops.fp4_dequantize(q),
    }
    for name, function in functions.items():
        print_row(name, call_overhead(function) * 1e6)


if __name__ == "__main__":
    bandwidth()
    overhead()
