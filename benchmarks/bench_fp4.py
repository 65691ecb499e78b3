"""my_ops.fp4_quantize, fp4_dequantize and rmsnorm_fp4_quantize beside torch.compile of the formula,
torchao, bitsandbytes (its own 4-bit format) and a copy.

    python benchmarks/bench_fp4.py [--quick]

An element of b bytes becomes a code (1/2) and its share of a scale: 1/16 in NVFP4, 1/32 in MXFP4.
"""

import functools

import peers
import torch
from bars import microseconds, of_copy
from suite import Case, Lazy, Suite, rotations

import my_ops

PACKED_BYTES = {"nvfp4": 1 / 2 + 1 / 16, "mxfp4": 1 / 2 + 1 / 32}
FORMATS = list(PACKED_BYTES)
SIDE = {"gpu": [16384], "gpu quick": [8192], "cpu": [4096], "cpu quick": [64]}
DTYPES = {
    "gpu": [torch.bfloat16, torch.float16, torch.float32],
    "gpu quick": [torch.bfloat16],
    "cpu": [torch.float32],
    "cpu quick": [torch.bfloat16, torch.float32],
}
SMALL_ROWS = {"gpu": [1, 8, 64], "gpu quick": [1, 64], "cpu": [1], "cpu quick": [1]}
SMALL_WIDTH = {"gpu": [8192], "gpu quick": [8192], "cpu": [8192], "cpu quick": [64]}
CHECKED_ROWS = 64

suite = Suite("fp4")


def data(device, side, dtype):
    x = torch.randn(side, side, device=device).to(dtype)
    return x, torch.ops.my_ops.fp4_amax(x)


def quantize(x, format, amax, **options):
    """With the tensor's amax given where the format has one."""
    given = {"amax": amax} if format == "nvfp4" else {}
    return functools.partial(my_ops.fp4_quantize, x, format, **given, **options)


def same_bytes(expected):
    """The first stored rows have the bytes of `expected`, which another route made."""

    def check(q):
        rows = slice(expected.packed.shape[0])
        assert torch.equal(q.packed[rows].to(expected.device), expected.packed), "other codes"
        scales = q.scale_bytes[rows].to(expected.device)
        assert torch.equal(scales, expected.scale_bytes), "other scales"

    return check


def of_cpu(x, format, amax, axis=-1, **options):
    """What the CPU makes of the first rows (with axis 0, columns)."""
    first = x[:CHECKED_ROWS] if axis else x[:, :CHECKED_ROWS]
    return quantize(first.cpu(), format, amax.cpu(), axis=axis, **options)()


def case(x, functions, check, nbytes, bars):
    """`nbytes` for each element."""
    return Case(functions, check, bytes=int(nbytes * x.numel()), copy=x, bars=bars)


def on_cpu(x):
    """100 million elements in a second, with two threads."""
    return microseconds(x.numel() / 100, on="cpu")


def only_ours(check):
    """Other libraries' bytes differ, or lie in another order: they are only timed."""
    return lambda result: check(result) if isinstance(result, my_ops.FP4Tensor) else None


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


def check_formula(x, amax):
    """What torch.compile is given does the same work."""
    packed, scale = formula(x[:CHECKED_ROWS], amax)
    q = my_ops.fp4_quantize(x[:CHECKED_ROWS], amax=amax)
    assert torch.equal(packed, q.packed) and torch.equal(scale.view(torch.uint8), q.scale_bytes)


def other_quantizers(device, x, format, amax):
    """On a GPU and for bfloat16, which all of them take."""
    if device == "cpu" or x.dtype != torch.bfloat16:
        return {}
    if format == "nvfp4":
        check_formula(x, amax)
        prepare = {
            "torch.compile": lambda: functools.partial(torch.compile(formula), amax=amax),
            "torchao": lambda: peers.torchao_nvfp4(device, amax),
        }
    else:
        prepare = {"torchao": lambda: peers.torchao_mxfp4(device)}
    prepare["bitsandbytes"] = lambda: peers.bitsandbytes_quantize(device)
    return {
        name: Lazy(lambda make=make: functools.partial(make(), x)) for name, make in prepare.items()
    }


@suite.group(rows=SMALL_ROWS, H=SMALL_WIDTH, kind=["nvfp4, amax given", "nvfp4", "mxfp4"])
def small(device, rows, H, kind):
    """2 + 9/16 (MXFP4: 17/32) for each element: bfloat16 x is read, codes and scales written."""
    inputs = torch.randn(rotations(2 * rows * H, device), rows, H, device=device).bfloat16()
    amax, format = torch.ops.my_ops.fp4_amax(inputs[0]), kind[:5]
    given = {"amax": amax} if "given" in kind else {}
    return Case(
        {"my_ops": lambda i: my_ops.fp4_quantize(inputs[i], format, **given)},
        same_bytes(of_cpu(inputs[0], format, amax)),
        bytes=int((2 + PACKED_BYTES[format]) * rows * H),
        how="graph",
        calls=len(inputs),
        bars=[microseconds(4)],
    )


@suite.group(dtype=DTYPES, format=FORMATS, side=SIDE)
def quantize_rows(device, dtype, format, side):
    """b + 9/16 (MXFP4: 17/32) for each element: x is read, codes and scales written."""
    x, amax = data(device, side, dtype)
    functions = {"my_ops": quantize(x, format, amax)} | other_quantizers(device, x, format, amax)
    check = only_ours(same_bytes(of_cpu(x, format, amax)))
    bars = [of_copy(0.92 if dtype == torch.float32 else 0.88), on_cpu(x)]
    return case(x, functions, check, dtype.itemsize + PACKED_BYTES[format], bars)


@suite.group(dtype=DTYPES, side=SIDE)
def quantize_with_amax(device, dtype, side):
    """2 b + 9/16 for each element: x is read twice, codes and scales written."""
    x, amax = data(device, side, dtype)
    functions = {"my_ops": lambda: my_ops.fp4_quantize(x)}
    nbytes = 2 * dtype.itemsize + PACKED_BYTES["nvfp4"]
    check = same_bytes(of_cpu(x, "nvfp4", amax))
    return case(x, functions, check, nbytes, [of_copy(0.85), on_cpu(x)])


@suite.group(dtype=DTYPES, format=FORMATS, side=SIDE)
def quantize_columns(device, dtype, format, side):
    """b + 9/16 (MXFP4: 17/32) for each element: x is read, codes and scales written."""
    x, amax = data(device, side, dtype)
    check = same_bytes(of_cpu(x, format, amax, axis=0))
    functions = {"my_ops": quantize(x, format, amax, axis=0)}
    return case(x, functions, check, dtype.itemsize + PACKED_BYTES[format], [of_copy(0.70)])


@suite.group(dtype=DTYPES, side=SIDE)
def quantize_with_2d_scales(device, dtype, side):
    """b + 9/16 for each element: x is read, codes and scales written."""
    x, amax = data(device, side, dtype)
    check = same_bytes(of_cpu(x, "nvfp4", amax, block2d=True))
    functions = {"my_ops": quantize(x, "nvfp4", amax, block2d=True)}
    return case(x, functions, check, dtype.itemsize + PACKED_BYTES["nvfp4"], [])


@suite.group(dtype=DTYPES, format=FORMATS, side=SIDE)
def quantize_stochastically(device, dtype, format, side):
    """b + 9/16 (MXFP4: 17/32) for each element: x is read, codes and scales written."""
    x, amax = data(device, side, dtype)
    check = same_bytes(of_cpu(x, format, amax, rounding="stochastic"))
    functions = {"my_ops": quantize(x, format, amax, rounding="stochastic")}
    return case(x, functions, check, dtype.itemsize + PACKED_BYTES[format], [of_copy(0.55)])


@suite.group(dtype=DTYPES, format=FORMATS, side=SIDE)
def dequantize(device, dtype, format, side):
    """b + 9/16 (MXFP4: 17/32) for each element: codes and scales are read, x written."""
    x, amax = data(device, side, dtype)
    q = quantize(x, format, amax)()
    functions = {"my_ops": q.dequantize}
    if device != "cpu" and dtype == torch.bfloat16:
        functions["bitsandbytes"] = Lazy(
            lambda: functools.partial(
                peers.bitsandbytes_dequantize(device), *peers.bitsandbytes_quantize(device)(x)
            )
        )
    expected = of_cpu(x, format, amax).dequantize()
    noise = (expected - x[:CHECKED_ROWS].cpu()).norm()

    def check(actual):
        """Ours are the CPU's values; another 4-bit format has noise of its own."""
        rows = actual[:CHECKED_ROWS].cpu()
        same = torch.equal(rows, expected)
        assert same or (rows - x[:CHECKED_ROWS].cpu()).norm() < 3 * noise, "other values"

    return case(
        x, functions, check, dtype.itemsize + PACKED_BYTES[format], [of_copy(0.90), on_cpu(x)]
    )


@suite.group(dtype=DTYPES, format=FORMATS, side=SIDE)
def rmsnorm_quantize(device, dtype, format, side):
    """b + 9/16 (MXFP4: 17/32) for each element: x is read, codes and scales of y written."""
    x, _ = data(device, side, dtype)
    x = x.view(-1, min(side, 8192))
    weight = torch.randn(x.shape[1], dtype=dtype, device=device)
    y = my_ops.rmsnorm(x, weight)
    amax = torch.ops.my_ops.fp4_amax(y)
    given = {"amax": amax} if format == "nvfp4" else {}
    functions = {
        "my_ops": functools.partial(my_ops.rmsnorm_fp4_quantize, x, weight, format=format, **given),
        "my_ops, two calls": lambda: quantize(my_ops.rmsnorm(x, weight), format, amax)(),
    }
    check = same_bytes(quantize(y[:CHECKED_ROWS], format, amax)())
    return case(x, functions, check, dtype.itemsize + PACKED_BYTES[format], [of_copy(0.80)])


if __name__ == "__main__":
    suite.main()
