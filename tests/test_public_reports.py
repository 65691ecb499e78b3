"""Public bug reports about other matmul and FP4 libraries, replayed with the inputs they name.

Those about RMSNorm are in test_rmsnorm_reports.py. Reports whose input is a whole family (layouts,
empty shapes, every scale byte, sizes over 2^31) are tests of the operators' own files.
"""

import contextlib
import math

import pytest
import torch
from test_matmul import PRECISIONS, poison

import my_ops

FORMATS = ["nvfp4", "mxfp4"]


def relative_error(c, a, b):
    exact = a.double() @ b.double()
    return ((c - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p != "tf32"])
@pytest.mark.parametrize("sample", [torch.randn, torch.rand])
def test_no_drift_with_a_long_sum(device, precision, sample):
    """triton#4603: 3xTF32 was a hundred times less accurate than CUTLASS at K = 16384."""
    a, b = sample(256, 16384, device=device), sample(16384, 256, device=device)
    ours = relative_error(my_ops.matmul(a, b, precision=precision), a, b)
    assert ours <= 2 * relative_error(torch.mm(a, b), a, b)


def test_the_default_is_ieee(device):
    """triton#8654, pytorch#53635: a product with ones was no sum, 1024.5 became 1024."""
    x = torch.randn(16, 16, device=device)
    ones = torch.ones(16, 16, device=device)
    expected = x.double().sum(0).expand(16, 16)
    torch.testing.assert_close(my_ops.matmul(ones, x).double(), expected, rtol=1e-5, atol=1e-5)
    a = torch.full((1, 1), 1024.5, device=device)
    assert my_ops.matmul(a, torch.ones(1, 1, device=device)).item() == 1024.5


@pytest.mark.filterwarnings("ignore")
def test_both_kinds_of_tf32_switches(device):
    """pytorch#179445, #194680: reading the old switch after setting the new one raised."""
    a, b = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    expected = my_ops.matmul(a, b)
    new = torch.backends.cuda.matmul
    before = new.fp32_precision
    try:
        for setting in ("tf32", "ieee"):
            new.fp32_precision = setting
            assert torch.equal(my_ops.matmul(a, b), expected)
        with contextlib.suppress(RuntimeError):  # torch refuses to mix them: its own business
            torch.backends.cuda.matmul.allow_tf32 = True
        assert torch.equal(my_ops.matmul(a, b), expected)
    finally:
        torch.set_float32_matmul_precision("highest")  # resets both kinds
        new.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("M", "N", "K"), [(1536, 256, 2048), (32, 8192, 8192), (100, 768, 512)])
@pytest.mark.cuda
def test_single_shapes_that_crashed(precision, M, N, K):
    """DeepGEMM#121, #84, #237: barrier and stage counts."""
    a = torch.randint(-8, 9, (M, K), device="cuda").float()
    b = torch.randint(-8, 9, (K, N), device="cuda").float()
    expected = (a.double() @ b.double()).float()
    assert torch.equal(my_ops.matmul(a, b, precision=precision), expected)


@pytest.mark.parametrize("N", [32, 96])
@pytest.mark.parametrize("format", FORMATS)
def test_every_column_is_written(device, format, N):
    """mlx#4250: with N below a tile all zeros, past the last whole tile garbage."""
    x = torch.ones(1, 1024, dtype=torch.bfloat16, device=device)
    weight = my_ops.fp4_quantize(torch.full((N, 1024), 1.5, device=device), format)
    poison(device, N)
    y = my_ops.fp4_linear(x, weight)
    assert y.float().sub(1536).abs().max() <= 8
    assert y.eq(y[0, 0]).all()


def test_a_small_tensor_scale_comes_before_float16(device):
    """vllm#33972: inf or NaN, since the cast to float16 came first; the answer is 11010."""
    x = torch.full((1, 4096), 100.0, dtype=torch.float16, device=device)
    weight = my_ops.FP4Tensor(
        torch.full((8, 2048), 0x77, dtype=torch.uint8, device=device),  # all codes 6.0
        torch.full((8, 256), 0x7E, dtype=torch.uint8, device=device),  # all scales 448
        torch.tensor(1e-5 * 2688, device=device),
        "nvfp4",
        4096,
        torch.float16,
    )
    expected = 4096 * 100 * 6 * 448e-5
    for y in (my_ops.fp4_linear(x, weight), my_ops.fp4_linear(x.float(), weight)):
        torch.testing.assert_close(
            y.float(), torch.full_like(y.float(), expected), rtol=1e-3, atol=0
        )


def test_padding_of_swizzled_scales(device):
    """vllm#31097, #55456, sglang#9346: padding never written, and the shape of it forgotten."""
    x = torch.randn(1, 80, device=device)
    torch.full((1 << 16,), 0xFF, dtype=torch.uint8, device=device)  # what a fresh buffer may hold
    q = my_ops.fp4_quantize(x)
    swizzled = my_ops.fp4_swizzle_scales(q).view(torch.uint8)
    assert swizzled.shape == (128 * 8,)
    assert swizzled.count_nonzero() == q.scale_bytes.count_nonzero() == 5
    assert my_ops.fp4_matmul(q, my_ops.fp4_quantize(x).t()).isfinite().all()
    one_tile = my_ops.fp4_swizzle_scales(my_ops.fp4_quantize(x[:, :64]))
    assert one_tile.shape == (512,)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("nonzero", [[], [1, 3]])
def test_rows_of_zeros(device, format, nonzero):
    """compressed-tensors#595, flashinfer#3448: 0 * Inf of an Inf tensor scale."""
    x, w = torch.zeros(4, 64, device=device), torch.randn(64, 5, device=device)
    x[nonzero] = torch.randn(len(nonzero), 64, device=device)
    zero = [row for row in range(4) if row not in nonzero]
    x.requires_grad_()
    w.requires_grad_()
    assert my_ops.fp4_quantize(x, format).dequantize()[zero].eq(0).all()
    y = my_ops.fp4_matmul(x, w, format)
    assert y[zero].eq(0).all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(y.sum(), (x, w)))


def test_stochastic_rounding_of_one_value(device):
    """TransformerEngine#3281: zeros, on a GPU without the instruction for it."""
    x = torch.full((4096, 16), 1.9, device=device)
    x[:, 0] = 6  # the block scale is 1
    q = my_ops.fp4_quantize(x, two_level=False, rounding="stochastic", seed=5)
    values = q.dequantize()[:, 1:]
    assert ((values == 1.5) | (values == 2)).all()
    assert abs((values == 2).float().mean().item() - 204 / 256) < 0.01
    assert abs(values.mean().item() - 1.898) < 0.005


def test_quantizing_the_transpose(device):
    """fouroversix#6: quantizing along the other axis was not quantizing the transpose."""
    x = torch.randn(64, 96, device=device)
    q, expected = my_ops.fp4_quantize(x, axis=0), my_ops.fp4_quantize(x.t().contiguous())
    assert torch.equal(q.packed, expected.packed)
    assert torch.equal(q.scale_bytes, expected.scale_bytes)


@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.bfloat16])
def test_gradient_of_a_bias(device, bias_dtype):
    """torchao#4817, #3525: it was dropped, and a float32 bias was refused."""
    x = torch.randn(7, 33, dtype=torch.bfloat16, device=device)
    bias = torch.zeros(5, dtype=bias_dtype, device=device, requires_grad=True)
    grad = torch.randn(7, 5, dtype=torch.bfloat16, device=device)
    y = my_ops.fp4_linear(x, my_ops.fp4_quantize(torch.randn(5, 33, device=device)), bias)
    (grad_bias,) = torch.autograd.grad(y, bias, grad)
    torch.testing.assert_close(grad_bias, grad.float().sum(0).to(bias_dtype))


def test_ragged_last_block_keeps_its_own_scale(device):
    """bitsandbytes#1884: the last, partial block spoiled the scale of the one before."""
    x = torch.ones(3, 33, device=device)
    x[:, 32] = 100
    y = my_ops.fp4_quantize(x, two_level=False).dequantize()
    torch.testing.assert_close(y[:, :32], torch.ones(3, 32, device=device), rtol=0.05, atol=0)
    assert math.isclose(y[0, 32].item(), 100, rel_tol=0.05)
