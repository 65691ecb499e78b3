"""my_ops.rmsnorm and add_rmsnorm: values, layouts, cast orders, errors, the module."""

import numpy as np
import pytest
import torch
from helpers import message, no_synchronization
from hypothesis import given, settings
from hypothesis import strategies as st
from rmsnorm_reference import FLOATS, assert_accurate, exact, sample

import my_ops

# One column; below, at and past a 16-byte chunk; 8 lanes a row; a warp a row (768) and ragged; one
# block a row; on a GPU a cluster a row (40000; 13001 column by column), slices of every size, and
# wider than a cluster.
WIDTHS = [1, 3, 8, 9, 64, 111, 201, 768, 1025, 5125, 16_384, 40_000, 1_200_001]
SLICED = [13_001, 131_071, 131_072, 262_144, 300_000, 4_000_000]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("H", WIDTHS)
def test_values(device, dtype, H):
    rows = 3 if H > 10_000 else 37
    x, weight = sample((rows, H), dtype, device), sample((H,), dtype, device)
    assert_accurate(my_ops.rmsnorm(x, weight), exact(x, weight))
    assert_accurate(my_ops.rmsnorm(x), exact(x))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("H", SLICED)
def test_sliced_rows(device, dtype, H):
    x, residual = sample((5, H), dtype, device), sample((5, H), dtype, device)
    weight = sample((H,), dtype, device)
    y = my_ops.rmsnorm(x, weight)
    assert_accurate(y, exact(x, weight))
    assert torch.equal(my_ops.rmsnorm(x[3:4], weight), y[3:4])
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, my_ops.rmsnorm(total, weight))


@pytest.mark.parametrize("dtype", FLOATS)
def test_add(device, dtype):
    for H in (64, 769, 5120, 40_000):
        x, residual = sample((2, 19, H), dtype, device), sample((2, 19, H), dtype, device)
        weight = sample((H,), dtype, device)
        y, total = my_ops.add_rmsnorm(x, residual, weight)
        assert torch.equal(total, x + residual)
        assert torch.equal(y, my_ops.rmsnorm(total, weight))


@pytest.mark.parametrize("w_dtype", FLOATS)
@pytest.mark.parametrize("out_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_mixed_dtypes(device, dtype, w_dtype, out_dtype):
    x, weight = sample((50, 96), dtype, device), sample((96,), w_dtype, device)
    double = dtype == torch.float64
    if (out_dtype == torch.float64) != double or (w_dtype == torch.float64 and not double):
        with pytest.raises(RuntimeError, match="float64"):
            my_ops.rmsnorm(x, weight, out_dtype=out_dtype)
        return
    y = my_ops.rmsnorm(x, weight, out_dtype=out_dtype)
    assert y.dtype == out_dtype
    assert_accurate(y, exact(x, weight, out_dtype=out_dtype))
    assert my_ops.rmsnorm(x, weight).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weight_offset_is_added_in_float32(device, dtype):
    x = sample((20, 256), dtype, device)
    weight = torch.full((256,), 2.0**-8, dtype=dtype, device=device)  # 1 + w is 1 in bfloat16
    y = my_ops.rmsnorm(x, weight, weight_offset=1.0)
    assert_accurate(y, exact(x, weight, offset=1.0))
    assert not torch.equal(y, my_ops.rmsnorm(x))


def hugging_face_llama(x, weight, eps):
    """The module run eagerly: its own casts, one after the other."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


@pytest.mark.parametrize("H", [511, 512])
@pytest.mark.parametrize("w_dtype", ["same", torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_hugging_face_cast_order(device, dtype, w_dtype, H):
    # Rows whose mean square is a power of four: rstd is exact, so that every bit has to agree.
    signs = sample((64, H), dtype, device).sign()
    x = signs * 2.0 ** torch.arange(-8, 8, dtype=dtype, device=device).repeat_interleave(4)[:, None]
    weight = sample((H,), dtype if w_dtype == "same" else w_dtype, device)
    expected = hugging_face_llama(x, weight, 0.0)
    y = my_ops.rmsnorm(x, weight, 0.0, cast_order="hf", out_dtype=expected.dtype)
    assert torch.equal(y, expected)
    # Elsewhere only where the last bit of rstd decides a rounding: rare.
    x = sample((64, H), dtype, device)
    expected = hugging_face_llama(x, weight, 1e-5)
    y = my_ops.rmsnorm(x, weight, 1e-5, cast_order="hf", out_dtype=expected.dtype)
    if dtype == torch.float32:
        torch.testing.assert_close(y, expected, rtol=3 * 2.0**-23, atol=0)
    else:
        assert (y != expected).float().mean() < 1e-3
        assert (y != my_ops.rmsnorm(x, weight, 1e-5, out_dtype=y.dtype)).float().mean() > 0.05


def test_eps_none_is_float32_epsilon(device):
    """pytorch#189581: with the epsilon of bfloat16 these rows came out 1.7 times too small."""
    x = (sample((2, 4, 1, 32), torch.float32, device) * 0.058).bfloat16()
    assert_accurate(my_ops.rmsnorm(x, eps=None), exact(x, eps=torch.finfo(torch.float32).eps))
    x = sample((5, 32), torch.float64, device) * 1e-7
    assert_accurate(my_ops.rmsnorm(x, eps=None), exact(x, eps=torch.finfo(torch.float64).eps))


def test_special_values(device):
    nan, inf = float("nan"), float("inf")
    x = torch.ones(4, 8, device=device)
    x[1, 3], x[2, 3], x[3] = nan, inf, 0.0
    y = my_ops.rmsnorm(x)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (8,), eps=1e-6), equal_nan=True)
    assert torch.equal(my_ops.rmsnorm(x[3:]), x[3:])
    assert my_ops.rmsnorm(x[3:], eps=0.0).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_and_small_rows(device, dtype):
    """x^2 is beyond float32 here; the result is not."""
    x = sample((2, 1000), dtype, device)
    for scale in (1e30, 1e-30):
        assert_accurate(my_ops.rmsnorm(x * scale, eps=0.0), exact(x * scale, eps=0.0))


def test_constant_rows_of_float32(device):
    """Equal elements round alike at every addition; a plain float32 sum drifts 4 units here."""
    x = torch.full((1, 20_000), 1.1, device=device)
    assert_accurate(my_ops.rmsnorm(x), exact(x))


def layouts(device, dtype):
    """Tensors with rows of 64 that are not simply contiguous, by name."""
    qkv = sample((2, 3, 24, 64), dtype, device)
    return {
        "sliced rows": qkv[:, ::2, 1:],
        "heads of a packed qkv": qkv[:, :, 8:16],
        "permuted": qkv.permute(2, 0, 1, 3),
        "five dimensions": sample((2, 2, 3, 2, 3, 64), dtype, device)[:, :, :2].transpose(1, 3),
        "six scattered dimensions": sample((2,) * 6 + (64,), dtype, device)[..., ::1].permute(
            4, 2, 0, 5, 1, 3, 6
        ),
        "transposed": sample((64, 10), dtype, device).t(),
        "every second column": sample((10, 128), dtype, device)[:, ::2],
        "misaligned": sample((10, 65), dtype, device)[:, 1:],
        "misaligned start": sample((641,), dtype, device)[1:].view(10, 64),
        "expanded rows": sample((1, 64), dtype, device).expand(10, 64),
        "expanded columns": sample((10, 1), dtype, device).expand(10, 64),
        "padded": sample((10, 72), dtype, device)[:, :64],
        "one dimension": sample((64,), dtype, device),
    }


LAYOUT_NAMES = list(layouts("cpu", torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_layouts_have_the_bits_of_the_contiguous_copy(device, dtype, name):
    x = layouts(device, dtype)[name]
    residual = layouts(device, dtype)[name]
    weight = sample((64,), dtype, device)
    y = my_ops.rmsnorm(x, weight)
    assert y.is_contiguous()
    assert torch.equal(y, my_ops.rmsnorm(x.contiguous(), weight))
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, my_ops.rmsnorm(total, weight))


@pytest.mark.parametrize("H", [64, 256, 1000, 4096, 5125])
def test_weight_layouts(device, H):
    x = sample((5, H), torch.bfloat16, device)
    storage = sample((2 * H + 1,), torch.float32, device)
    for weight in (storage[::2][:H], storage[1 : H + 1], storage[:1].expand(H)):
        assert torch.equal(my_ops.rmsnorm(x, weight), my_ops.rmsnorm(x, weight.clone()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("H", [8, 768, 2048, 3584, 8192, 40_000])
def test_misaligned_rows_have_the_bits_of_aligned_ones(device, dtype, H):
    storage, residual = (sample((7, H + 3), dtype, device) for _ in range(2))
    storage_weight = sample((H + 1,), dtype, device)
    x, residual, weight = storage[:, 1 : H + 1], residual[:, 3:], storage_weight[1:]
    y = my_ops.rmsnorm(x, weight)
    assert torch.equal(y, my_ops.rmsnorm(x.contiguous(), weight.clone()))
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, my_ops.rmsnorm(total, weight))


@pytest.mark.parametrize("H", [8, 200, 768, 4096, 5125, 40_000])
def test_a_row_does_not_depend_on_the_others(device, H):
    """vllm#48271: the block size, and with it the bits, changed at 256 rows."""
    x, grad = (sample((512, H), torch.bfloat16, device) for _ in range(2))
    weight = sample((H,), torch.bfloat16, device)
    y = my_ops.rmsnorm(x, weight)
    grad_x = torch.ops.my_ops.rmsnorm_backward_x(grad, None, x, weight, 1e-6, 0.0)
    for rows in (slice(0, 1), slice(300, 302), slice(255, 512)):
        assert torch.equal(my_ops.rmsnorm(x[rows], weight), y[rows])
        part = torch.ops.my_ops.rmsnorm_backward_x(grad[rows], None, x[rows], weight, 1e-6, 0.0)
        assert torch.equal(part, grad_x[rows])


@pytest.mark.cuda
@pytest.mark.parametrize("H", [3, 111, 255])
def test_nor_on_how_many_rows_a_lane_takes(device, H):
    """Of narrow rows of odd width: four from 65536 rows on, one of fewer."""
    x, residual = (sample((65_541, H), torch.bfloat16, device) for _ in range(2))
    weight = sample((H,), torch.bfloat16, device)
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    assert torch.equal(total, x + residual)
    for rows in (slice(0, 40_000), slice(40_000, None)):
        part, _ = my_ops.add_rmsnorm(x[rows], residual[rows], weight)
        assert torch.equal(part, y[rows])


@pytest.mark.parametrize("shape", [(0,), (0, 7168), (4, 0), (0, 0), (3, 0, 8), (2, 0, 0)])
def test_empty(device, shape):
    x = torch.ones(shape, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight = torch.ones(shape[-1], device=device, requires_grad=True)
    for y in (my_ops.rmsnorm(x, weight), *my_ops.add_rmsnorm(x, x, weight)):
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        grads = torch.autograd.grad(y.sum(), (x, weight), allow_unused=True, retain_graph=True)
        assert grads[0].shape == shape
        assert grads[1] is None or torch.equal(grads[1], torch.zeros_like(weight))
    torch.ones(3, device=device).sum().item()  # the context is still usable


def test_module(device):
    ours = my_ops.nn.RMSNorm(48, device=device)
    torchs = torch.nn.RMSNorm(48, eps=1e-6, device=device)
    torch.nn.init.normal_(torchs.weight)
    ours.load_state_dict(torchs.state_dict())
    x = sample((5, 48), torch.float32, device)
    torch.testing.assert_close(ours(x), torchs(x))
    assert repr(ours) == "RMSNorm(48, eps=1e-06, elementwise_affine=True)"
    assert my_ops.nn.RMSNorm([48], elementwise_affine=False).weight is None
    gemma = my_ops.nn.RMSNorm(48, weight_offset=1.0, dtype=torch.bfloat16, device=device)
    assert torch.equal(gemma.weight, torch.zeros(48, dtype=torch.bfloat16, device=device))
    torch.testing.assert_close(gemma(x), my_ops.rmsnorm(x))
    wide = my_ops.nn.RMSNorm(48, cast_order="hf", out_dtype=torch.float32, device=device)
    assert wide(x.bfloat16()).dtype == torch.float32
    assert repr(wide).endswith("elementwise_affine=True, cast_order='hf', out_dtype=torch.float32)")
    assert repr(gemma).endswith("elementwise_affine=True, weight_offset=1.0)")


@pytest.mark.cuda
@pytest.mark.parametrize("H", [64, 5120, 131072, 1_200_001])
def test_no_synchronization(H):
    x, weight = (sample(shape, torch.float32, "cuda") for shape in ((3, H), (H,)))
    inputs = x.requires_grad_(), weight.requires_grad_()
    with no_synchronization():
        for y in (my_ops.rmsnorm(*inputs), *my_ops.add_rmsnorm(x, x, weight)):
            torch.autograd.grad(y.sum(), inputs, allow_unused=True, retain_graph=True)


def test_kernel_level_functions(device):
    x, grad = (sample((6, 40), torch.float32, device) for _ in range(2))
    weight = sample((40,), torch.float32, device).requires_grad_()
    assert torch.equal(my_ops._C.rmsnorm(x, weight, 1e-6), my_ops.rmsnorm(x, weight))
    assert torch.equal(my_ops._C.rmsnorm(x), my_ops.rmsnorm(x))
    grad_x, grad_weight = my_ops._C.rmsnorm_backward(grad, x, weight, 1e-6)
    x.requires_grad_()
    expected = torch.autograd.grad(my_ops.rmsnorm(x, weight), (x, weight), grad)
    assert torch.equal(grad_x, expected[0])
    assert torch.equal(grad_weight, expected[1])


def test_errors(device):
    x, weight = torch.ones(2, 3, device=device), torch.ones(3, device=device)
    rmsnorm, add = my_ops.rmsnorm, my_ops.add_rmsnorm
    backward = torch.ops.my_ops.rmsnorm_backward
    assert message(rmsnorm, x.int()) == (
        "my_ops.rmsnorm: x: expected float16, bfloat16, float32 or float64, got Int"
    )
    assert message(rmsnorm, x[0, 0]).endswith("x: expected at least one dimension, got a scalar")
    assert message(rmsnorm, x, weight[:2]) == (
        "my_ops.rmsnorm: weight: expected the shape of x's last dimension ([3]), got [2]"
    )
    assert message(rmsnorm, x, weight.view(1, 3)).endswith("([3]), got [1, 3]")
    assert message(rmsnorm, x, weight.int()).endswith("float32 or float64, got Int")
    assert message(rmsnorm, x, weight.double()).endswith(
        "weight: expected float64 only with a float64 x, got float64 with Float"
    )
    assert message(rmsnorm, x, weight, -1.0).endswith(
        "eps: expected None or a number that is not negative, got -1"
    )
    assert "eps" in message(rmsnorm, x, weight, float("nan"))
    for y in x, x.to("meta"):
        assert message(rmsnorm, y, out_dtype=torch.int32).endswith(
            "out_dtype: expected float16, bfloat16 or float32, got int32"
        )
        assert message(rmsnorm, y.double(), out_dtype=torch.float32).endswith(
            "out_dtype: expected float64 for a float64 x, got float32"
        )
    assert message(rmsnorm, x, cast_order="gemma", error=ValueError) == (
        "my_ops.rmsnorm: cast_order: expected 'torch' or 'hf', got 'gemma'"
    )
    assert message(add, x, x[:1]) == (
        "my_ops.add_rmsnorm: residual: expected the shape of x ([2, 3]), got [1, 3]"
    )
    assert message(add, x, x.half()) == (
        "my_ops.add_rmsnorm: residual: expected the dtype of x (Float), got Half"
    )
    assert message(backward, x[:1], None, x, weight, 1e-6, 0.0) == (
        "my_ops.rmsnorm_backward: grad: expected the shape of x ([2, 3]), got [1, 3]"
    )
    assert message(backward, x.double(), None, x, weight, 1e-6, 0.0).endswith(
        "grad: expected float16, bfloat16 or float32, got Double"
    )
    assert message(backward, x, x.half(), x, weight, 1e-6, 0.0).endswith(
        "grad_sum: expected the dtype of x (Float), got Half"
    )
    unwritten = torch.ones(3, device="meta")
    assert message(rmsnorm, x, unwritten).endswith(f"device of x ({x.device}), got meta")
    assert message(add, x, x.to("meta")).endswith(f"device of x ({x.device}), got meta")
    assert message(rmsnorm, x.to("meta"), unwritten[:2]).endswith("([3]), got torch.Size([2])")
    for arguments, options, expected in (
        ((None,), {}, "rmsnorm: x: expected a tensor, got NoneType"),
        ((x, 3), {}, "rmsnorm: weight: expected a tensor or None, got int"),
        ((x, None, "1"), {}, "rmsnorm: eps: expected a number or None, got str"),
        ((x,), {"weight_offset": None}, "rmsnorm: weight_offset: expected a number, got NoneType"),
    ):
        assert message(rmsnorm, *arguments, error=TypeError, **options) == f"my_ops.{expected}"
    assert message(add, x, 3, error=TypeError) == (
        "my_ops.add_rmsnorm: residual: expected a tensor, got int"
    )
    assert "cast_order" in message(rmsnorm, x, cast_order=[], error=ValueError)
    assert "out_dtype" in message(rmsnorm, x, out_dtype="float32", error=TypeError)
    for sizes in ((2, 3), (), None, "a", 1.5, -8):
        assert "dim: expected one size" in message(my_ops.nn.RMSNorm, sizes, error=ValueError)
    assert my_ops.nn.RMSNorm(np.int64(3)).dim == 3
    assert message(my_ops.nn.RMSNorm, 8, weight_offset="x", error=TypeError) == (
        "my_ops.nn.RMSNorm: weight_offset: expected a number, got str"
    )
    assert message(my_ops._C.rmsnorm, x.to("meta")) == (
        "my_ops.rmsnorm: x: expected a CPU or CUDA tensor, got meta"
    )
    assert torch.equal(rmsnorm(x), torch.ones_like(x) * rmsnorm(x)[0, 0])


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), max_size=4),
    H=st.integers(1, 70),
    permutation=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
    dtype=st.sampled_from(FLOATS),
    w_dtype=st.sampled_from([None, torch.bfloat16, torch.float32]),
    offset=st.sampled_from([0.0, 1.0]),
)
def test_any_shape_and_stride(shape, H, permutation, step, dtype, w_dtype, offset):
    x = sample([size * step for size in (*shape, H)], dtype, "cpu")
    x = x[tuple(slice(None, None, step) for _ in x.shape)]
    x = x.permute(permutation.sample(range(x.dim()), x.dim()))
    weight = None if w_dtype is None else sample((x.shape[-1],), w_dtype, "cpu")
    y = my_ops.rmsnorm(x, weight, weight_offset=offset)
    assert_accurate(y, exact(x, weight, offset=offset))
