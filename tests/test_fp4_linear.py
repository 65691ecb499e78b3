"""my_ops.fp4_linear and nn.FP4Linear: values, gradients of any order, F.linear, state, errors."""

import copy
import io

import pytest
import torch
from fp4_reference import DTYPES, FORMATS, values
from helpers import check_gradients_in_graph, message
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck
from torch.nn import functional as F

import my_ops
from my_ops.nn import FP4Linear
from my_ops.ops.fp4_matmul import PackedFactor

# Weights of 2^20 elements and more have kernels of their own on a GPU, by the number of rows of x
# and by the place of rows of scales; some with a last step or tile that is not whole. Of K that
# are a multiple of 16 only, rows of scales start anywhere.
LARGE = [
    (2, 4112, 301),
    (14, 2064, 515),
    (140, 1040, 1017),
    (5, 2048, 600),
    (1, 4224, 300),
    (8, 8320, 130),
    (13, 2304, 518),
    (12, 256, 4300),
    (9, 128, 8460),
    (16, 2080, 514),
    (40, 1088, 1030),
    (130, 1152, 1001),
    (300, 1024, 1100),
    (1, 2304, 465),
    (3, 4608, 233),
    (12, 1024, 1032),
    (250, 512, 2258),
    (500, 1024, 2258),
]

# One element, one row of an odd K, below and past a tile of the kernel, several tiles, a long sum.
SIZES = [
    (1, 1, 1),
    (1, 33, 65),
    (15, 16, 17),
    (17, 65, 66),
    (130, 160, 140),
    (3, 4096, 5),
    *LARGE,
]


def assert_linear(actual, x, w, bias=None):
    """`actual` is x @ w.t() + bias but for float32 sums and one rounding; all else is float64."""
    bias = torch.zeros(w.shape[0], dtype=torch.float64, device=w.device) if bias is None else bias
    exact = x @ w.t() + bias
    magnitude = x.abs() @ w.t().abs() + bias.abs()
    info = torch.finfo(actual.dtype)
    rounding = exact.abs() * info.eps / 2 + info.smallest_normal * info.eps
    error = (actual.double() - exact).abs()
    assert actual.shape == exact.shape
    assert (error <= (8 + 2 * x.shape[-1] ** 0.5) * 2**-24 * magnitude + rounding).all()


def cuda_operands(M, K, N, dtype, format):
    q = my_ops.fp4_quantize(torch.randn(N, K, device="cuda"), format)
    return torch.randn(M, K, device="cuda", dtype=dtype), q


def in_wider_rows(x, before, behind):
    """x as columns of a wider matrix, which has so many more on either side."""
    rows = torch.empty(x.shape[0], before + x.shape[1] + behind, device=x.device, dtype=x.dtype)
    return rows[:, before : rows.shape[1] - behind].copy_(x)


def check_products(x, q):
    """Exact, the same bits every time and from either layout of x, and in equal rows of x."""
    bias = torch.randn(q.shape[0], device=x.device)
    y = my_ops.fp4_linear(x, q, bias)
    assert_linear(y, x.double(), values(q), bias.double())
    wide = my_ops.fp4_linear(x, q, bias, out_dtype=torch.float32)
    assert_linear(wide, x.double(), values(q), bias.double())
    for _ in range(20):
        assert torch.equal(my_ops.fp4_linear(x, q, bias), y)
    assert torch.equal(my_ops.fp4_linear(x.t().contiguous().t(), q, bias), y)
    same = my_ops.fp4_linear(x[:1].expand_as(x), q)
    assert torch.equal(same, same[:1].expand_as(same))


def derivatives(layer, *inputs):
    """The gradients of a loss by `inputs`, and those of their own squares."""
    first = torch.autograd.grad(layer(*inputs).pow(3).sum(), inputs, create_graph=True)
    return *first, *torch.autograd.grad(sum(g.pow(2).sum() for g in first), inputs)


def assert_derivatives(actual, expected):
    """The terms of an element are about as large as the largest element, and may cancel."""
    for one, other in zip(actual, expected, strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_product_with_the_weight(device, format, dtype, M, K, N):
    x = torch.randn(M, K, dtype=dtype, device=device)
    q = my_ops.fp4_quantize(torch.randn(N, K, device=device), format)
    y = my_ops.fp4_linear(x, q)
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert_linear(y, x.double(), values(q))
    for bias_dtype in DTYPES:
        bias = torch.randn(N, dtype=bias_dtype, device=device)
        assert_linear(my_ops.fp4_linear(x, q, bias), x.double(), values(q), bias.double())


@pytest.mark.parametrize("format", FORMATS)
def test_weight_quantized_along_the_other_dimension(device, format):
    w = torch.randn(70, 45, device=device)
    q = my_ops.fp4_quantize(w, format, axis=0)
    x = torch.randn(33, 45, device=device, requires_grad=True)
    y = my_ops.fp4_linear(x, q)
    assert_linear(y.detach(), x.detach().double(), values(q))
    grad = torch.randn(33, 70, device=device)
    assert_linear(torch.autograd.grad(y, x, grad)[0], grad.double(), values(q).t())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("format", "largest"), [("nvfp4", 126), ("mxfp4", 252)])
def test_every_scale_byte(device, format, largest, dtype):
    """One-hot rows of x show each value alone, rounded once to the dtype of x."""
    block = 16 if format == "nvfp4" else 32
    packed = torch.arange(block // 2).mul(37).to(torch.uint8).expand(largest + 1, -1).contiguous()
    scale = torch.arange(largest + 1).to(torch.uint8)[:, None]
    q = my_ops.FP4Tensor(packed.to(device), scale.to(device), None, format, block, dtype)
    y = my_ops.fp4_linear(torch.eye(block, dtype=dtype, device=device), q)
    assert torch.equal(y, q.dequantize(torch.float32).t().to(dtype))


# Panels of two and of three tiles for up to 8 rows of x and up to 16, the last one not whole;
# stretches, one and several of a block, more than fit at once, and sums where x was; what has
# neither; more rows, and more tiles than fit at once. A last step of 16, of more than one scale, of
# a half, and of all but 16; 16 steps more than the warps have. One row of x, for which each SM has
# a part of a weight: of four to six rows of it, of more than one unit of eight; ends of K of 16,
# 32, 64, 176, 224, 240. Where K is as many slices as warps and a rest of 16, 32, 64, 80 or 112,
# each warp has one.
RAGGED = [
    *((1, 4112, 5003), (1, 4208, 3001), (1, 4176, 533), (1, 4384, 660), (1, 4368, 2003)),
    *((1, 4112, 1061), (1, 8208, 533), (1, 4128, 1400), (1, 5104, 1061), (1, 4272, 3001)),
    *((1, 4336, 660), (1, 4592, 533), (1, 4320, 1061), (1, 4160, 600)),
    *((1, 4112, 301), (8, 1072, 2600), (5, 1072, 4300), (16, 1808, 617), (9, 272, 5003)),
    *((8, 2896, 380), (8, 2896, 2200), (13, 4112, 301), (16, 2288, 517), (16, 4112, 4203)),
    *((7, 4112, 9005), (10, 5104, 1003), (3, 144, 8203), (16, 32784, 40), (17, 4112, 301)),
    *((40, 2896, 380), (20, 272, 17000), (20, 256, 17000)),
    *((100, 1136, 1001), (150, 1040, 1017), (260, 2064, 1030), (300, 272, 4000)),
    *((64, 4112, 5003), (12, 6160, 2049), (30, 8208, 140), (130, 4128, 2050), (200, 1072, 8305)),
    *((90, 1040, 20001), (500, 2096, 5003), (240, 4112, 5003)),
    *((1, 16400, 69), (1, 4144, 661), (1, 4192, 661), (1, 4416, 600)),
    *((100, 272, 4420), (250, 2064, 584), (200, 2576, 8644), (400, 8208, 2825)),
]


def fewer_on_cpu(device, N):
    """Rows of a weight: the CPU has one kernel for all sizes."""
    return N if device == "cuda" else min(N, 301)


def moved(tensor, distance):
    """The tensor as a view that begins `distance` bytes into its memory and ends with it."""
    memory = torch.empty(tensor.nbytes + distance, dtype=torch.uint8, device=tensor.device)
    return memory[distance:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), RAGGED)
def test_ragged_rows_of_a_weight(device, format, dtype, M, K, N):
    """Rows of codes at multiples of 8 bytes, of scales anywhere, wherever the weight begins; a
    scale that is a NaN, each of a row's or its last, shows in its row alone, and one at the end of
    a row of x in that."""
    N = fewer_on_cpu(device, N)
    q = my_ops.fp4_quantize(torch.randn(N, K, device=device), format)
    x, bias = torch.randn(M, K, device=device, dtype=dtype), torch.randn(N, device=device)
    exact = x.double()
    y = my_ops.fp4_linear(x, q, bias)
    assert_linear(y, exact, values(q), bias.double())
    assert torch.equal(my_ops.fp4_linear(x, q, bias), y)
    assert_linear(my_ops.fp4_linear(x, q, out_dtype=torch.float32), exact, values(q))
    nan = 0x7F if format == "nvfp4" else 0xFF
    q.scale_bytes[2::6], q.scale_bytes[5::6, -1] = nan, nan
    keep = torch.arange(N, device=device) % 3 != 2
    for codes, scales in ((0, 0), (8, 5), (24, 12), (16, 1)):
        memory = moved(q.packed, codes), moved(q.scale_bytes, scales)
        y = my_ops.fp4_linear(x, my_ops.FP4Tensor(*memory, q.amax, format, K, torch.float32))
        assert y[:, ~keep].isnan().all()
        assert_linear(y[:, keep], exact, values(q)[keep])
    x[-1, -1] = torch.nan
    y = my_ops.fp4_linear(x, q)
    assert y[-1].isnan().all()
    assert_linear(y[:-1, keep], exact[:-1], values(q)[keep])


@pytest.mark.parametrize("M", [3, 40, 200])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [2.0**-70, 2.0**12, 0.0, float("nan")])
def test_scales_that_16_bits_do_not_hold(device, dtype, M, scale):
    w = torch.randn(1024, 1024, device=device)
    w[5, :32] *= scale
    q = my_ops.fp4_quantize(w, "mxfp4")
    x = torch.randn(M, 1024, dtype=dtype, device=device) / 64
    y = my_ops.fp4_linear(x, q)
    if scale != scale:
        assert y[:, 5].isnan().all()
        y, q = (
            torch.cat((y[:, :5], y[:, 6:]), 1),
            my_ops.fp4_quantize(torch.cat((w[:5], w[6:])), "mxfp4"),
        )
    assert_linear(y, x.double(), values(q))


# Rows of x by the kernel that they choose; some K and N are not whole steps and tiles of it.
MISFIT_SIZES = [
    (2, 2304, 1032),
    (7, 2304, 1032),
    (12, 2304, 1032),
    (12, 4608, 2056),
    (1, 2048, 4104),
    (5, 2048, 4104),
    (5, 4608, 8200),
    (16, 6144, 8200),
    (9, 5120, 14340),
    (3, 2048, 4104),
    (20, 4608, 8200),
    (30, 2560, 4104),
    (14, 2064, 1027),
    (11, 1040, 1029),
    (16, 4112, 4203),
    (5, 4112, 9005),
    (20, 1072, 1029),
    (60, 4112, 5003),
    (120, 2064, 1027),
    (40, 2304, 1032),
    (70, 1040, 2053),
    (60, 6144, 520),
    (110, 3104, 5003),
    (130, 2304, 2056),
    (200, 4224, 1032),
    (300, 576, 8200),
    (190, 2304, 8190),
    (513, 640, 16385),
    (700, 2304, 8200),
    (3000, 640, 2768),
    (2000, 2304, 2192),
    (128, 2048, 4096),
    (300, 1024, 4112),
    (70, 512, 20000),
    (120, 512, 2064),
    (65, 2560, 2448),
    (250, 2048, 528),
    (400, 2560, 1168),
]


def misfit_size(device, M, K, N):
    return (M, K, N) if device == "cuda" else (M, K, min(N, 2056))


def with_scales(q, rows, blocks, bytes):
    scale = q.scale_bytes.clone()
    scale[rows, blocks] = bytes
    return my_ops.FP4Tensor(q.packed, scale, None, "mxfp4", q.shape[1], torch.float32)


@pytest.mark.parametrize("which", ["one block", "a block of every 16 rows", "all blocks"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("M", "K", "N"), [*MISFIT_SIZES, (1, 4112, 1061), (1, 4096, 4104)])
def test_rows_with_scales_that_16_bits_do_not_hold(device, dtype, M, K, N, which):
    """Their sums are as exact as others, and others are as they are without them."""
    M, K, N = misfit_size(device, M, K, N)
    plain = my_ops.fp4_quantize(torch.randn(N, K, device=device), "mxfp4")
    x = torch.randn(M, K, device=device, dtype=dtype) / 64
    blocks = plain.scale_bytes.shape[1]
    if which == "one block":
        rows, block = torch.tensor([N - 3]), torch.tensor([0])
    elif which == "a block of every 16 rows":
        strips = torch.arange(N // 16)
        rows, block = strips * 16 + strips % 16, strips * 5 % blocks
    else:
        rows, block = torch.arange(N).repeat_interleave(blocks), torch.arange(blocks).repeat(N)
    rows, block = rows.to(device), block.to(device)
    misfits = torch.tensor([134, 140] if dtype == torch.bfloat16 else [100, 108, 134, 138])
    q = with_scales(plain, rows, block, misfits.to(device, torch.uint8)[rows % len(misfits)])
    y = my_ops.fp4_linear(x, q)
    assert_linear(y, x.double(), values(q))
    for _ in range(3):
        assert torch.equal(my_ops.fp4_linear(x, q), y)
    others = torch.ones(N, dtype=torch.bool, device=device).index_fill(0, rows, False)
    if M > 8:  # with fewer rows of x, whole steps of 16 rows are multiplied in another way
        assert torch.equal(y[:, others], my_ops.fp4_linear(x, plain)[:, others])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("byte", [100, 138])
@pytest.mark.parametrize(("M", "K", "N"), [*MISFIT_SIZES, (1, 4112, 1061), (1, 4096, 4104)])
def test_infinity_under_a_scale_that_16_bits_do_not_hold(device, dtype, byte, M, K, N):
    """It makes sums infinite, or NaN where a code is zero, in its row of x alone."""
    M, K, N = misfit_size(device, M, K, N)
    q = my_ops.fp4_quantize(torch.randn(N, K, device=device) + 8, "mxfp4")
    q.packed[20, :16] = 0x00
    q = with_scales(q, torch.tensor([3, 20, N - 1]), 0, byte)
    x = torch.randn(M, K, device=device, dtype=dtype) / 64
    x[0, 5] = float("inf")
    y = my_ops.fp4_linear(x, q)
    assert_linear(y[1:], x[1:].double(), values(q))
    infinite = values(q)[:, 5] > 0
    assert (y[0, infinite] == float("inf")).all()
    assert y[0, ~infinite].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("N", "K", "k"), [(3, 32, 0), (1061, 4112, 77), (1061, 4112, 4100)])
def test_extremes_of_x(device, dtype, alone, N, K, k):
    """The largest and the smallest numbers of a dtype, and Inf and NaN in their own rows alone."""
    info = torch.finfo(dtype)
    x = torch.zeros(5, K, dtype=dtype, device=device)
    x[0, k], x[1, k], x[2, k] = info.max, info.smallest_normal, -info.max
    x[3, k], x[4, k] = float("inf"), float("nan")
    q = my_ops.fp4_quantize(torch.full((N, K), 0.25, device=device), "mxfp4")
    y = torch.cat([my_ops.fp4_linear(row, q) for row in (x.split(1) if alone else (x,))])
    assert torch.equal(y[:3], x[:3, k : k + 1].expand(3, N) / 4)
    assert (y[3] == float("inf")).all()
    assert y[4].isnan().all()


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("magnitude", [2.0**-100, 2.0**50, "one large row", "one large number"])
@pytest.mark.parametrize(("K", "N"), [(1024, 1024), (4112, 1024), (2048, 4104), (4096, 4104)])
def test_few_rows_of_any_magnitude(device, format, magnitude, rows, K, N):
    """bfloat16 whose products with small or large numbers leave the range of usual ones."""
    N = fewer_on_cpu(device, N)
    x = torch.randn(rows, K, device=device)
    if magnitude == "one large row":
        x[-1] *= 2.0**50
    elif magnitude == "one large number":
        x[:, 77] = 2.0**90
    else:
        x *= magnitude
    x = x.bfloat16()
    q = my_ops.fp4_quantize(torch.randn(N, K, device=device), format)
    assert_linear(my_ops.fp4_linear(x, q), x.double(), values(q))


# One row of x with a slice of K for each warp and without, panels, streams, tiles of the fused
# kernel with the weight in boxes and without.
OF_EACH_KERNEL = [
    *((1, 4096, 4104), (1, 4112, 1061), (1, 4368, 2003), (2, 2048, 4104), (2, 1024, 1032)),
    *((8, 8192, 8200), (16, 6144, 8200), (5, 4112, 2005), (32, 2560, 1040), (200, 2560, 1040)),
    *((700, 2560, 1040), (250, 512, 2258), (500, 1024, 2258), (100, 272, 4420), (700, 2304, 8208)),
]


@pytest.mark.parametrize(("M", "K", "N"), OF_EACH_KERNEL)
@pytest.mark.parametrize(
    ("of_w", "of_x"),
    [(2.0**-110, 1), (2.0**-110, 2.0**100), (2.0**60, 1), (2.0**60, 2.0**-90)],
)
def test_weights_of_any_magnitude(device, of_w, of_x, M, K, N):
    """Whose tensor scale a kernel has to bring in before sums leave the range of float32."""
    N = fewer_on_cpu(device, N)
    q = my_ops.fp4_quantize(torch.randn(N, K, device=device) * of_w)
    x = (torch.randn(M, K, device=device) * of_x).bfloat16()
    assert_linear(my_ops.fp4_linear(x, q), x.double(), values(q))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), OF_EACH_KERNEL)
def test_each_value_alone(device, format, dtype, M, K, N):
    """Rows of x with a single 1 show codes under their scales, rounded once to the dtype of x."""
    N = fewer_on_cpu(device, N)
    block, scales = {"nvfp4": (16, torch.arange(127)), "mxfp4": (32, torch.arange(8, 247))}[format]
    at = torch.arange(N)[:, None] + 3 * torch.arange(-(-K // block))
    scale = scales[at % len(scales)].to(torch.uint8).to(device)
    packed = torch.randint(256, (N, K // 2), device=device).to(torch.uint8)
    q = my_ops.FP4Tensor(packed, scale, None, format, K, dtype)
    k = torch.randperm(K, device=device)[:M]
    x = torch.zeros(M, K, device=device, dtype=dtype)
    x[torch.arange(len(k), device=device), k] = 1
    expected = q.dequantize(torch.float32)[:, k].t().to(dtype)
    assert torch.equal(my_ops.fp4_linear(x, q)[: len(k)], expected)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("M", [1, 2, 5, 12, 16, 40, 100, 200])
def test_scales_that_are_no_numbers(device, format, M):
    """A scale of NaN reaches the sums of its row and no other, whatever kernel M chooses."""
    N, K = 1032, 1024
    q = my_ops.fp4_quantize(torch.randn(N, K, device=device), format)
    x = torch.randn(M, K, device=device).bfloat16()
    rows = torch.tensor([0, 7, 500, N - 1], device=device)
    q.scale_bytes[rows, torch.tensor([0, 3, 9, q.scale_bytes.shape[1] - 1])] = (
        0x7F if format == "nvfp4" else 0xFF
    )
    y = my_ops.fp4_linear(x, q)
    assert y[:, rows].isnan().all()
    others = torch.ones(N, dtype=torch.bool, device=device).index_fill(0, rows, False)
    assert_linear(y[:, others], x.double(), values(q)[others])


@pytest.mark.parametrize("format", FORMATS)
def test_x_of_any_layout(device, format):
    q = my_ops.fp4_quantize(torch.randn(24, 40, device=device), format)
    x = torch.randn(6, 50, 40, device=device)
    misaligned = torch.randn(50 * 40 + 1, device=device)[1:].view(50, 40)
    views = x.transpose(0, 1), x[:, ::3], x[:1].expand(4, 50, 40), misaligned, x[0, 0]
    for view in (*views, torch.randn(40, 7, device=device).t(), x[..., :1].expand(6, 50, 40)):
        y = my_ops.fp4_linear(view, q)
        assert y.shape == (*view.shape[:-1], 24)
        torch.testing.assert_close(y, my_ops.fp4_linear(view.contiguous(), q))
    for half in (torch.float16, torch.bfloat16):
        odd = torch.randn(9, 43, device=device).to(half)[:, 1:41]  # rows on 2-byte boundaries
        assert torch.equal(my_ops.fp4_linear(odd, q), my_ops.fp4_linear(odd.contiguous(), q))


# What the copy engine brings in panels of two, four and seven tiles, the last one not whole, for up
# to 8 rows of x, 16, 24 and 32; more panels than fit at once; teams of warps with unequal steps.
BOX_PANELS = [
    (1, 4096, 4104),  # another kernel's, whose warps have a slice of K each
    (1, 2048, 4104),
    (2, 2048, 4104),
    (1, 6144, 8200),
    (2, 6144, 8200),
    (9, 4096, 2056),
    (5, 2048, 4104),
    (3, 4608, 8200),
    (8, 8192, 8192),
    (16, 6144, 8200),
    (13, 5120, 14340),
    (16, 6144, 15000),
    (21, 4608, 8200),
    (29, 2560, 4104),
]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), BOX_PANELS)
def test_panels_of_any_layout(format, dtype, M, K, N):
    """Also where the copy engine cannot read an operand; a scale that is a NaN shows in its row
    alone, as do Inf and NaN in rows of x."""
    x, q = cuda_operands(M, K, N, dtype, format)
    bias = torch.randn(N, device="cuda", dtype=dtype)
    exact = x.double()
    y = my_ops.fp4_linear(x, q, bias)
    assert_linear(y, exact, values(q), bias.double())
    assert torch.equal(my_ops.fp4_linear(x, q, bias), y)
    strided = in_wider_rows(x, 8, 8)
    assert torch.equal(my_ops.fp4_linear(strided, q, bias), y)
    odd = in_wider_rows(x, 1, 2)
    assert_linear(my_ops.fp4_linear(odd, q), exact, values(q))
    assert_linear(my_ops.fp4_linear(x[:1].expand(M, K), q), exact[:1].expand(M, K), values(q))
    memory = q.packed, moved(q.scale_bytes, 4)
    apart = my_ops.FP4Tensor(*memory, q.amax, format, K, torch.float32)
    assert_linear(my_ops.fp4_linear(x, apart), exact, values(q))
    q.scale_bytes[N - 5, 3] = 0x7F if format == "nvfp4" else 0xFF
    bad_rows = {1: float("inf"), 2: float("nan")} if M > 2 else {}
    for m, bad in bad_rows.items():
        x[m, 5 + m] = bad
    y = my_ops.fp4_linear(x, q)
    assert y[:, N - 5].isnan().all()
    for m, bad in bad_rows.items():
        assert (y[m].isnan() if bad != bad else ~y[m].isfinite()).all()
    rows = [m for m in range(M) if m not in bad_rows]
    keep = torch.arange(N, device="cuda") != N - 5
    assert_linear(y[rows][:, keep], exact[rows], values(q)[keep])
    x[0, K - 1] = torch.nan
    assert my_ops.fp4_linear(x, q)[0].isnan().all()


MANY_ROWS = [
    (190, 2304, 8190),
    (250, 2064, 8190),
    (600, 576, 16390),
    (513, 640, 16385),
    (700, 2304, 8200),
    (700, 2304, 8208),
    (1530, 256, 4112),
]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), MANY_ROWS)
def test_many_rows_of_any_layout(format, dtype, M, K, N):
    """Tiles of 192 and 256 rows: with sums of two blocks, with x for two blocks, with both; with
    results that the copy engine stores (N a multiple of 16)."""
    x, q = cuda_operands(M, K, N, dtype, format)
    y = my_ops.fp4_linear(x, q)
    assert_linear(y, x.double(), values(q))
    bias = torch.randn(N, device="cuda", dtype=dtype)
    for out_dtype in (torch.float16, torch.bfloat16):
        biased = my_ops.fp4_linear(x, q, bias, out_dtype=out_dtype)
        assert_linear(biased, x.double(), values(q), bias.double())
    strided = in_wider_rows(x, 8, 8)
    odd = in_wider_rows(x, 1, 2)
    for view in (strided, odd, x.t().contiguous().t()):
        assert torch.equal(my_ops.fp4_linear(view, q), y)
    assert torch.equal(my_ops.fp4_linear(x[:1].expand(M, K), q), y[:1].expand(M, N))
    nan = my_ops.FP4Tensor(q.packed, q.scale_bytes.clone(), q.amax, format, K, torch.float32)
    nan.scale_bytes[7, 3] = 0x7F if format == "nvfp4" else 0xFF
    with_nan = my_ops.fp4_linear(x, nan)
    assert with_nan[:, 7].isnan().all()
    assert_linear(with_nan[:, 8:], x.double(), values(q)[8:])


@pytest.mark.parametrize(("M", "K", "N"), [(0, 32, 4), (4, 32, 0), (5, 0, 7)])
def test_empty(device, M, K, N):
    x = torch.randn(M, K, device=device, requires_grad=True)
    bias = torch.randn(N, device=device, requires_grad=True)
    y = my_ops.fp4_linear(x, my_ops.fp4_quantize(torch.randn(N, K, device=device)), bias)
    assert torch.equal(y, bias.expand(M, N))
    grad_x, grad_bias = torch.autograd.grad(y.sum(), (x, bias))
    assert grad_x.shape == x.shape
    assert (grad_x == 0).all()
    assert torch.equal(grad_bias, torch.full((N,), float(M), device=device))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", [(33,), (5, 33), (2, 3, 33)])
def test_gradients_of_any_order(device, format, shape):
    x = torch.randn(shape, device=device, requires_grad=True)
    bias = torch.randn(20, device=device, requires_grad=True)
    q = my_ops.fp4_quantize(torch.randn(20, 33, device=device), format)

    wide = [t.detach().double().requires_grad_() for t in (x, bias)]
    actual = derivatives(lambda x, bias: my_ops.fp4_linear(x, q, bias), x, bias)
    expected = derivatives(lambda x, bias: F.linear(x, values(q), bias), *wide)
    assert_derivatives(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_have_the_dtype_of_their_tensor(device, dtype):
    x = torch.randn(7, 32, dtype=dtype, device=device, requires_grad=True)
    bias = torch.randn(9, device=device, requires_grad=True)
    q = my_ops.fp4_quantize(torch.randn(9, 32, device=device))
    grad = torch.randn(7, 9, device=device).to(dtype)
    grad_x, grad_bias = torch.autograd.grad(my_ops.fp4_linear(x, q, bias), (x, bias), grad)
    assert grad_x.dtype == dtype
    assert grad_bias.dtype == torch.float32
    assert_linear(grad_x, grad.double(), values(q).t())
    torch.testing.assert_close(grad_bias, grad.float().sum(0))


# Up to 8, 16, 32 and 64 rows of the gradient, the sum in one to three parts (outer_kernel.cuh);
# more rows, and a weight that this kernel does not take (wide_kernel.cuh).
LARGE_GRADIENTS = [
    *((1, 2048, 520), (7, 1024, 1032), (8, 16384, 136), (16, 2048, 520), (12, 8192, 1032)),
    *((33, 1024, 1096), (64, 4096, 4096), (20, 18048, 72), (9, 1000, 1104)),
    *((65, 1024, 1104), (300, 2304, 1032), (700, 1000, 1104)),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), LARGE_GRADIENTS)
def test_gradient_of_x_of_a_large_layer(device, format, dtype, M, K, N):
    """Of any layout of the incoming one, and where MXFP4 has scales that float16 does not hold."""
    N = fewer_on_cpu(device, N)
    q = my_ops.fp4_quantize(torch.randn(N, K, device=device), format)
    weights = [q]
    if format == "mxfp4":
        weights.append(with_scales(q, torch.tensor([N - 3]), 1, 140))
    x = torch.randn(M, K, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(M, N, device=device).to(dtype) / 64
    layouts = grad, in_wider_rows(grad, 8, 8), in_wider_rows(grad, 1, 2), grad[:1].expand(M, N)
    for weight in weights:
        y = my_ops.fp4_linear(x, weight)
        for dy in layouts:
            (actual,) = torch.autograd.grad(y, x, dy, retain_graph=True)
            assert_linear(actual, dy.double(), values(weight).t())
        (of_sum,) = torch.autograd.grad(y.sum() / 64, x)
        assert_linear(of_sum, torch.full_like(grad, 1 / 64).double(), values(weight).t())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_dtype_of_the_result(device, dtype, out_dtype):
    """Rounded once, to out_dtype, with the bias; gradients have the dtypes of their tensors."""
    x = torch.randn(2, 9, 48, device=device).to(dtype).requires_grad_()
    bias = torch.randn(33, device=device, requires_grad=True)
    w = torch.randn(33, 48, device=device, requires_grad=True)
    q = my_ops.fp4_quantize(w)
    exact = x.detach().double(), values(q.detach())
    assert_linear(my_ops.fp4_linear(x, q, out_dtype=out_dtype).detach(), *exact)
    y = my_ops.fp4_linear(x, q, bias, out_dtype=out_dtype)
    assert y.dtype == out_dtype
    assert_linear(y.detach(), *exact, bias.detach().double())
    grad = torch.randn(2, 9, 33, device=device).to(out_dtype)
    grad_x, grad_w, grad_bias = torch.autograd.grad(y, (x, w, bias), grad)
    assert grad_x.dtype == dtype
    assert_linear(grad_x, grad.double(), exact[1].t())
    torch.testing.assert_close(grad_bias, grad.float().sum((0, 1)))
    expected = grad.double().flatten(0, 1).t() @ exact[0].flatten(0, 1)
    tolerance = max(torch.finfo(t).eps for t in (dtype, out_dtype)) * 32
    torch.testing.assert_close(grad_w.double(), expected, rtol=1e-4, atol=tolerance)


def test_derivatives_with_another_dtype_of_the_result(device):
    x = torch.randn(5, 33, device=device).bfloat16().requires_grad_()
    q = my_ops.fp4_quantize(torch.randn(20, 33, device=device))
    wide = x.detach().double().requires_grad_()
    layer = lambda x: my_ops.fp4_linear(x, q, out_dtype=torch.float32)  # noqa: E731
    for actual, expected in zip(
        derivatives(layer, x), derivatives(lambda x: F.linear(x, values(q)), wide), strict=True
    ):
        torch.testing.assert_close(
            actual.double(), expected, rtol=0.02, atol=0.02 * expected.abs().max().item()
        )


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2)])
def test_only_the_asked_for_gradients_are_computed(device, needed, monkeypatch):
    from my_ops.ops import fp4_linear as module

    calls = []

    def counted(name):
        function = getattr(module, name)
        return lambda *arguments: calls.append(name) or function(*arguments)

    tensors = [torch.randn(shape, device=device) for shape in ((4, 32), (6, 32), (6,))]
    for i in needed:
        tensors[i].requires_grad_()
    x, w, bias = tensors
    y = my_ops.fp4_linear(x, my_ops.fp4_quantize(w), bias)
    for name in ("_forward", "_weight_gradient"):
        monkeypatch.setattr(module, name, counted(name))
    with torch.profiler.profile() as profile:
        torch.autograd.grad(y, [tensors[i] for i in needed], torch.ones_like(y))
    calls += ["aten::sum"] * any(event.key == "aten::sum" for event in profile.key_averages())
    names = "_forward", "_weight_gradient", "aten::sum"
    assert calls == [names[i] for i in needed]


def test_two_runs_give_the_same_bits(device):
    x = torch.randn(70, 1024, device=device).bfloat16().requires_grad_()
    q = my_ops.fp4_quantize(torch.randn(1024, 1024, device=device))
    runs = [my_ops.fp4_linear(x, q) for _ in range(2)]
    assert torch.equal(*runs)
    assert torch.equal(*(torch.autograd.grad(y, x, torch.ones_like(y))[0] for y in runs))


@pytest.mark.cuda
@pytest.mark.parametrize("M", [1, 40, 300])
def test_no_synchronization_and_graph_capture(M):
    x = torch.randn(M, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q = my_ops.fp4_quantize(torch.randn(1024, 1024, device="cuda"))
    bias = torch.randn(1024, device="cuda", requires_grad=True)

    def step():
        y = my_ops.fp4_linear(x, q, bias)
        return y.detach(), *torch.autograd.grad(y.float().pow(2).sum(), (x, bias))

    check_gradients_in_graph(step, x)


def test_gradient_of_sum_and_other_layouts(device):
    x = torch.randn(34, 48, device=device, requires_grad=True)
    q = my_ops.fp4_quantize(torch.randn(40, 48, device=device))
    y = my_ops.fp4_linear(x, q)
    sum_of_weights = q.dequantize().sum(0).expand(34, 48)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], sum_of_weights)
    for grad in (
        torch.randn(40, 34, device=device).t(),
        torch.randn(34, 80, device=device)[:, ::2],
    ):
        (actual,) = torch.autograd.grad(my_ops.fp4_linear(x, q), x, grad)
        torch.testing.assert_close(actual, grad @ q.dequantize())


def test_gradient_of_the_weight_is_straight_through(device):
    w = torch.randn(9, 40, device=device, requires_grad=True)
    x = torch.randn(2, 5, 40, device=device, requires_grad=True)
    quantized = values(my_ops.fp4_quantize(w.detach()))

    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    actual = derivatives(lambda x, w: my_ops.fp4_linear(x, my_ops.fp4_quantize(w)), x, w)
    expected = derivatives(lambda x, w: F.linear(x, w + (quantized - w).detach()), *wide)
    assert_derivatives(actual, expected)


def test_nothing_dense_is_saved(device):
    x = torch.randn(256, 512, device=device, requires_grad=True)
    q = my_ops.fp4_quantize(torch.randn(128, 512, device=device))
    bias = torch.randn(128, device=device, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        my_ops.fp4_linear(x, q, bias)
    assert saved
    assert sum(t.nbytes for t in saved) <= q.nbytes


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_functional_transforms(device):
    q = my_ops.fp4_quantize(torch.randn(6, 32, device=device))
    x = torch.randn(3, 4, 32, device=device)
    loss = lambda x: my_ops.fp4_linear(x, q).pow(2).sum()  # noqa: E731
    w = q.dequantize()
    like = lambda x: F.linear(x, w).pow(2).sum()  # noqa: E731
    for transform in (
        torch.func.grad,
        lambda f: torch.func.vmap(torch.func.grad(f)),
        lambda f: torch.func.grad(lambda x: torch.func.vmap(f)(x).sum()),
        lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).pow(2).sum()),
    ):
        torch.testing.assert_close(transform(loss)(x), transform(like)(x), rtol=1e-4, atol=1e-3)


def test_functional_linear_and_matmul_take_the_weight(device):
    q = my_ops.fp4_quantize(torch.randn(6, 32, device=device))
    x = torch.randn(2, 4, 32, device=device, requires_grad=True)
    bias = torch.randn(6, device=device, requires_grad=True)
    y, expected = F.linear(x, q, bias), my_ops.fp4_linear(x, q, bias)
    torch.testing.assert_close(y, expected)
    grads = [torch.autograd.grad(out.pow(2).sum(), (x, bias)) for out in (y, expected)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(x @ q.t(), my_ops.fp4_linear(x, q))
    with torch.inference_mode():
        torch.testing.assert_close(F.linear(x, q, bias), expected)


def test_functional_linear_reads_the_packed_weight(device):
    q = my_ops.fp4_quantize(torch.randn(6, 32, device=device))
    x = torch.randn(4, 32, device=device, requires_grad=True)
    with torch.profiler.profile() as profile:
        F.linear(x, q, torch.randn(6, device=device)).sum().backward()
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls["my_ops::fp4_linear_forward"] == 2  # the product and the gradient of x
    assert "my_ops::fp4_dequantize" not in calls


def test_autocast(device):
    layer = FP4Linear(32, 6, device=device)
    x = torch.randn(4, 32, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = F.linear(x, layer.weight, layer.bias)
        y = layer(x)
        assert torch.equal(my_ops.fp4_linear(x, layer.weight, layer.bias), y)
        assert my_ops.fp4_linear(x.bfloat16(), layer.weight).dtype == torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert my_ops.fp4_linear(x, layer.weight).dtype == torch.float32
    assert y.dtype == expected.dtype == torch.bfloat16
    rounding = 2**-9 * layer.bias.abs().max().item()  # of the bias, which F.linear casts too
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=rounding)
    y.sum().backward()
    assert x.grad.dtype == torch.float32
    assert layer.bias.grad.dtype == torch.float32


@pytest.mark.parametrize("format", FORMATS)
def test_module(device, format):
    linear = torch.nn.Linear(40, 24, device=device)
    layer = FP4Linear.from_linear(linear.eval(), format)
    assert not layer.training
    assert layer.bias is linear.bias
    assert not layer.weight.requires_grad
    assert layer.weight.nbytes < linear.weight.nbytes / 6
    x = torch.randn(3, 5, 40, device=device)
    q = my_ops.fp4_quantize(linear.weight.detach(), format)
    assert torch.equal(layer(x), my_ops.fp4_linear(x, q, linear.bias))
    without_bias = FP4Linear.from_linear(torch.nn.Linear(40, 24, bias=False, device=device))
    assert without_bias.bias is None
    assert without_bias(x).shape == (3, 5, 24)
    assert repr(layer) == (
        f"FP4Linear(in_features=40, out_features=24, bias=True, format='{format}')"
    )
    fresh = FP4Linear(40, 24, format=format, device=device, dtype=torch.bfloat16)
    assert fresh(x.bfloat16()).dtype == torch.bfloat16
    assert 0 < fresh.weight.dequantize(torch.float32).std() < 1 / 40**0.5  # as nn.Linear's


@pytest.mark.parametrize("format", FORMATS)
def test_state(device, format):
    layer, other = (FP4Linear(40, 24, format=format, device=device) for _ in range(2))
    x = torch.randn(5, 40, device=device)
    assert not torch.equal(layer(x), other(x))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(layer(x), other(x))
    dense = torch.nn.Linear(40, 24, device=device)
    state = dense.state_dict()
    other.load_state_dict(state)  # a checkpoint of nn.Linear is quantized on the way in
    assert torch.equal(other(x), FP4Linear.from_linear(dense, format)(x))
    assert type(state["weight"]) is torch.Tensor  # and stays as it was
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    half = copy.deepcopy(layer).to(torch.bfloat16)
    assert half.weight.dtype == half(x.bfloat16()).dtype == torch.bfloat16


def test_bias_trains(device):
    layer = FP4Linear(16, 4, device=device)
    target = torch.randn(4, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    before = layer.weight.packed.clone()
    for _ in range(50):
        optimizer.zero_grad()
        loss = (layer(torch.zeros(2, 16, device=device)) - target).pow(2).mean()
        loss.backward()
        optimizer.step()
    assert loss < 1e-6
    assert torch.equal(layer.weight.packed, before)


@pytest.mark.parametrize("format", FORMATS)
def test_opcheck(device, format):
    factor = tuple(PackedFactor.of(my_ops.fp4_quantize(torch.randn(6, 37, device=device), format)))
    op = torch.ops.my_ops.fp4_linear_forward.default
    bias = torch.randn(6, device=device)
    x = torch.randn(2, 3, 37, device=device)
    for view in (x, x.transpose(0, 1), x.bfloat16(), x[:1].expand(2, 3, 37), x[0, 0]):
        opcheck(op, (view, *factor, bias, format))
    opcheck(op, (x, *factor, None, format))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break(device, backend):
    layer = FP4Linear(48, 6, device=device)
    w = torch.randn(48, 48, device=device, requires_grad=True)

    def step(x):
        hidden = torch.tanh(my_ops.fp4_linear(x, my_ops.fp4_quantize(w)))
        return layer(F.linear(hidden, w)).pow(2).sum()

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 8):
        x = torch.randn(rows, 48, device=device, requires_grad=True)
        expected = torch.autograd.grad(step(x), (x, w, layer.bias))
        actual = torch.autograd.grad(compiled(x), (x, w, layer.bias))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_kernel_level_function(device):
    q = my_ops.fp4_quantize(torch.randn(6, 37, device=device))
    x, bias = torch.randn(4, 37, device=device), torch.randn(6, device=device)
    actual = my_ops._C.fp4_linear(x, *PackedFactor.of(q), bias)
    assert torch.equal(actual, my_ops.fp4_linear(x, q, bias))


def test_errors(device):
    x = torch.ones(4, 32, device=device)
    q = my_ops.fp4_quantize(torch.ones(3, 32, device=device))
    for arguments, expected in {
        (x, x): "weight: expected an FP4Tensor, got Tensor",
        (x, q[0]): "weight: expected two dimensions, got [32]",
        (q, q): "x: expected a dense tensor (fp4_matmul takes two FP4 operands), got FP4Tensor",
        (x.double(), q): "x: expected float32, float16 or bfloat16, got torch.float64",
        (x.to("meta"), q): f"x: expected the device of weight ({x.device}), got meta",
        (x[:, :16], q): "x: expected as many columns as weight has (32), got [4, 16]",
        (x[0, 0], q): "x: expected as many columns as weight has (32), got []",
        (x, q, x[0]): "bias: expected the shape [3], got [32]",
        (x, q, x[0, :3].double()): "bias: expected float32, float16 or bfloat16, got Double",
    }.items():
        actual = message(my_ops.fp4_linear, *arguments)
        assert actual == f"my_ops.fp4_linear: {expected}"
        other_dtype = message(my_ops.fp4_linear, *arguments, out_dtype=torch.bfloat16)
        assert other_dtype.startswith(f"my_ops.fp4_linear: {expected[:30]}")
    assert message(my_ops.fp4_linear, x, q, out_dtype=torch.int8) == (
        "my_ops.fp4_linear: out_dtype: expected float32, float16 or bfloat16, got torch.int8"
    )
    assert my_ops.fp4_linear(x, q).shape == (4, 3)  # the device still works


@settings(max_examples=60, deadline=None)
@given(
    leading=st.lists(st.integers(0, 5), max_size=3),
    K=st.integers(0, 70),
    N=st.integers(0, 20),
    format=st.sampled_from(FORMATS),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
)
def test_any_shape(leading, K, N, format, dtype, biased):
    x = torch.randn(*leading, K, dtype=dtype)
    q = my_ops.fp4_quantize(torch.randn(N, K), format)
    bias = torch.randn(N, dtype=dtype) if biased else None
    y = my_ops.fp4_linear(x, q, bias)
    assert_linear(y, x.double(), values(q), bias.double() if biased else None)
