"""my_ops.rmsnorm_fp4_quantize: the bytes of rmsnorm and fp4_quantize, whatever the rows."""

import pytest
import torch
from helpers import assert_same_bytes
from torch.library import opcheck

import my_ops

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# With the tensor scale known before; without, it is two operators.
RECIPES = [
    ("nvfp4", {"amax": 7.5}),
    ("nvfp4", {"two_level": False}),
    ("nvfp4", {}),
    ("mxfp4", {}),
    ("mxfp4", {"scale_mode": "rceil"}),
]


def two_calls(x, weight, eps, format, weight_offset, options):
    y = my_ops.rmsnorm(x, weight, eps, weight_offset=weight_offset)
    return my_ops.fp4_quantize(y, format, **options)


# Narrow rows, the least and the most that one kernel takes, whole and ragged ones in between, with
# two and with four pieces a thread.
@pytest.mark.parametrize(
    "H", [16, 40, 496, 512, 1040, 2048, 2080, 3072, 4096, 5120, 8192, 14336, 16384, 20480]
)
@pytest.mark.parametrize(("format", "options"), RECIPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bytes_as_two_calls(device, H, format, options, dtype):
    x = (torch.randn(5, H, device=device) * 3).to(dtype)
    for weight_dtype in {dtype, torch.float32}:
        weight = torch.randn(H, device=device).to(weight_dtype)
        for w, offset in ((weight, 0.0), (weight, 1.0), (None, 0.0)):
            q = my_ops.rmsnorm_fp4_quantize(x, w, 1e-5, format, weight_offset=offset, **options)
            assert_same_bytes(q, two_calls(x, w, 1e-5, format, offset, options))


def test_many_rows_and_layouts(device):
    """More rows than thread blocks, rows apart, leading dimensions that do not collapse."""
    weight = torch.randn(2048, device=device, dtype=torch.bfloat16)
    wide = torch.randn(3001, 2560, device=device).bfloat16()
    for x in (wide[:, :2048], wide[:, 8:2056], wide[:, 1:2049], wide[::3, :2048].contiguous()):
        q = my_ops.rmsnorm_fp4_quantize(x, weight, amax=6.0)
        assert_same_bytes(q, two_calls(x, weight, 1e-6, "nvfp4", 0.0, {"amax": 6.0}))
    x = wide[:12, :2048].reshape(3, 4, 2048).transpose(0, 1)
    assert_same_bytes(
        my_ops.rmsnorm_fp4_quantize(x, weight, format="mxfp4"),
        two_calls(x, weight, 1e-6, "mxfp4", 0.0, {}),
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30, 0.0])
def test_extreme_rows(device, bad):
    x = torch.randn(4, 4096, device=device)
    x[1] *= bad
    x[2, 5] = bad
    for options in ({"amax": 5.0}, {"two_level": False}):
        q = my_ops.rmsnorm_fp4_quantize(x, eps=None, **options)
        assert_same_bytes(q, two_calls(x, None, None, "nvfp4", 0.0, options))


@pytest.mark.parametrize("shape", [(0, 2048), (3, 0), (0,), (2, 0, 4096)])
def test_empty(device, shape):
    x = torch.empty(shape, device=device, dtype=torch.bfloat16)
    for format, options in RECIPES:
        q = my_ops.rmsnorm_fp4_quantize(x, format=format, **options)
        assert_same_bytes(q, two_calls(x, None, 1e-6, format, 0.0, options))


def test_gradient(device):
    x = torch.randn(3, 2048, device=device, requires_grad=True)
    weight = torch.randn(2048, device=device, requires_grad=True)
    grad = torch.randn(3, 2048, device=device)
    y = my_ops.rmsnorm_fp4_quantize(x, weight, amax=6.0).dequantize()
    expected = torch.autograd.grad(my_ops.rmsnorm(x, weight), (x, weight), grad)
    for got, want in zip(torch.autograd.grad(y, (x, weight), grad), expected, strict=True):
        assert torch.equal(got, want)


def test_compile_and_opcheck(device):
    x = torch.randn(3, 2048, device=device, dtype=torch.bfloat16)
    weight = torch.randn(2048, device=device, dtype=torch.bfloat16)
    step = lambda x: my_ops.rmsnorm_fp4_quantize(x, weight, amax=6.0).dequantize()  # noqa: E731
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), step(x))
    op = torch.ops.my_ops.rmsnorm_fp4_quantize.default
    amax = torch.tensor(6.0, device=device)
    opcheck(op, (x, weight, 1e-6, 0.0, amax, "nvfp4", "floor"))
    opcheck(op, (x[:, :40], None, None, 1.0, None, "mxfp4", "ceil"))


def test_errors(device):
    x = torch.ones(2, 2048, device=device)
    quantize, name = my_ops.rmsnorm_fp4_quantize, "rmsnorm_fp4_quantize: "
    for arguments, options, message in (
        ((x, x[0, :5]), {"amax": 1.0}, name + "weight: expected the shape"),
        ((x.double(),), {}, name + "x: expected float32, float16 or bfloat16"),
        ((x, None, -1.0), {"two_level": False}, name + "eps: expected None or a number"),
        ((x, None, 1e-6, "fp4"), {}, name + "format: expected 'nvfp4' or 'mxfp4'"),
        ((x, None, 1e-6, "mxfp4"), {"amax": 1.0}, name + "amax: expected None"),
        ((x,), {"amax": -1}, name + "amax: expected a number from 0 on, got -1"),
        ((x, None, 1e-6, "mxfp4"), {"scale_mode": "up"}, name + "scale_mode: expected 'floor'"),
    ):
        with pytest.raises(RuntimeError, match=message):
            quantize(*arguments, **options)
