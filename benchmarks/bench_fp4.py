"""my_ops.fp4_quantize and fp4_dequantize beside a copy, torch.compile of the formula and others.

    python benchmarks/bench_fp4.py [results.json]    # and results.png, with matplotlib

Bytes of an element of b bytes: x is read (b), codes (1/2) and scales (1/16 for NVFP4, 1/32 for
MXFP4) are written, or the other way round. Computing amax reads x once more. torchao and
bitsandbytes (another format, 4.5 bits an element too) are timed where they are installed.
"""

import functools
import json
import sys
from pathlib import Path

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
            yield "nvfp4 quantize, 2D scales", b + stored, functools.partial(given, block2d=True)
        yield f"{format} quantize along axis 0", b + stored, functools.partial(given, axis=0)
        stochastic = functools.partial(given, rounding="stochastic")
        yield f"{format} quantize, stochastic", b + stored, stochastic
        yield f"{format} dequantize", b + stored, q.dequantize
        rows, weight = x.view(-1, 8192 if DEVICE == "cuda" else 2048), x[0, :8192]
        fused = functools.partial(my_ops.rmsnorm_fp4_quantize, rows, weight, format=format)
        yield f"{format} rmsnorm and quantize", b + stored, functools.partial(fused, **options)
    yield from other_libraries(x, amax)


def other_libraries(x, amax):
    b = x.dtype.itemsize
    if x.dtype != torch.float16:
        try:
            from torchao.prototype.mx_formats.mx_tensor import to_mx
            from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
        except ImportError:
            pass
        else:
            scale = amax / 2688
            nvfp4, mxfp4 = torch.compile(nvfp4_quantize), torch.compile(to_mx)
            yield "nvfp4 torchao, compiled", b + 9 / 16, lambda: nvfp4(x, 16, scale)
            element = torch.float4_e2m1fn_x2
            yield "mxfp4 torchao, compiled", b + 17 / 32, lambda: mxfp4(x, element, 32)
    try:
        from bitsandbytes.functional import quantize_4bit
    except ImportError:
        return
    if DEVICE == "cuda":
        part = x[:8192, :8192].contiguous()  # it is slow: a quarter of the tensor
        share = part.numel() / x.numel()
        yield "bitsandbytes 4-bit", (b + 9 / 16) * share, lambda: quantize_4bit(part)


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


def bandwidth() -> dict[str, float]:
    """The share of a copy's rate, by case."""
    copy = copy_bytes_per_second()
    shares = {}
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
            shares[f"{name} {str(dtype)[6:]}"] = rate / copy
    return shares


def small_rows() -> None:
    """Few rows of 8192 in a CUDA graph, as in decoding."""
    if DEVICE != "cuda":
        return
    print_header("fp4, us in a CUDA graph, rows of 8192 bfloat16", "rows", "amax given", "amax")
    for rows in (1, 8, 64):
        x = torch.randn(rows, 8192, dtype=torch.bfloat16, device=DEVICE)
        amax = torch.ops.my_ops.fp4_amax(x)
        raw = functools.partial(torch.ops.my_ops.fp4_quantize, x, amax)
        given = graphed(functools.partial(raw, "nvfp4", "floor", "nearest", 0))
        own = graphed(functools.partial(my_ops.fp4_quantize, x))
        print_row(str(rows), *(measure(g.replay) / CALLS_IN_GRAPH * 1e6 for g in (given, own)))


CALLS_IN_GRAPH = 50


def graphed(function) -> torch.cuda.CUDAGraph:
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_IN_GRAPH):
            function()
    return graph


def save(shares: dict[str, float], path: Path) -> None:
    path.write_text(json.dumps(shares, indent=1) + "\n")
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots(figsize=(8, 0.22 * len(shares) + 1), layout="constrained")
    axes.barh(list(shares), [100 * share for share in shares.values()])
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=1)
    axes.set_xlabel("% of the rate of a copy")
    figure.savefig(path.with_suffix(".png"))


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
    shares = bandwidth()
    small_rows()
    overhead()
    if len(sys.argv) > 1:
        save(shares, Path(sys.argv[1]))
