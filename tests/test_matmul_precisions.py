"""my_ops.matmul on the tensor cores: what "bf16x6", "fp16x3" and "tf32" promise, on a Hopper GPU.

On other devices and without code for 9.0a they are "ieee", which test_matmul.py covers.
"""

import math

import pytest
import torch
from test_matmul import LAYOUTS, assert_accurate, matrix_layouts, poison, randn

import my_ops

ACCURATE = ["bf16x6", "fp16x3"]
PRECISIONS = [*ACCURATE, "tf32"]
# Large enough to leave "ieee" behind: even, odd, ragged in every tile, cut along K, few rows.
SHAPES = [
    (2048, 2048, 2048),
    (1537, 1601, 1543),
    (1923, 2050, 1100),
    (500, 3001, 4099),
    (3001, 500, 4100),
    (700, 520, 33_333),
    (6000, 5000, 130),
]
# In TF32 as they lie in memory: each tile, whole and in slices, one and several for an SM.
TF32_SHAPES = [
    (1024, 1024, 1024),
    (644, 636, 652),
    (260, 500, 8004),
    (1280, 1284, 1276),
    (1540, 1600, 1536),
    (4100, 4096, 132),
]

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="no Hopper GPU on this machine",
    ),
    pytest.mark.skipif(
        "9.0a" not in my_ops._build_info.architectures, reason="_C has no code for 9.0a"
    ),
]


def relative_error(c, a, b):
    exact = a.double() @ b.double()
    return ((c - exact).norm() / exact.norm()).item()


def integers(*shape, largest):
    return torch.randint(-largest, largest + 1, shape, device="cuda").float()


def graded(rows, cols, dim, exponent):
    """Normal numbers times 2^(exponent * position along dim)."""
    position = torch.linspace(0, 1, (rows, cols)[dim], device="cuda")
    return randn(rows, cols, device="cuda") * torch.exp2(exponent * position).unsqueeze(1 - dim)


def log_uniform(rows, cols):
    sign = integers(rows, cols, largest=1)
    return sign * torch.exp2(60 * (torch.rand(rows, cols, device="cuda") - 0.5))


def operands(kind, M, N, K):
    if kind == "normal":
        return randn(M, K, device="cuda"), randn(K, N, device="cuda")
    if kind == "uniform":
        return torch.rand(M, K, device="cuda"), torch.rand(K, N, device="cuda")
    if kind == "graded":
        return graded(M, K, 1, -40), graded(K, N, 0, 40)
    return log_uniform(M, K), log_uniform(K, N)


@pytest.mark.parametrize("precision", ACCURATE)
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
def test_values(precision, M, N, K):
    a, b = randn(M, K, device="cuda"), randn(K, N, device="cuda")
    poison("cuda", M * N)
    c = my_ops.matmul(a, b, precision=precision)
    assert_accurate(c, a, b, factor=2.0)
    assert not torch.equal(c, my_ops.matmul(a, b))  # it was not "ieee"
    assert torch.equal(c, my_ops.matmul(a, b, precision=precision))


@pytest.mark.parametrize(("M", "N", "K"), SHAPES + TF32_SHAPES)
def test_tf32_rounds_to_nearest(M, N, K):
    a, b = randn(M, K, device="cuda"), randn(K, N, device="cuda")

    def nearest(x):
        bits = x.view(torch.int32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)

    poison("cuda", M * N)
    c = my_ops.matmul(a, b, precision="tf32")
    exact = nearest(a).double() @ nearest(b).double()
    # What is left is the tensor cores' adding.
    bound = 2.0**-23 * math.sqrt(K) * (a.abs().double() @ b.abs().double())
    assert ((c - exact).abs() <= bound).all()
    assert relative_error(c, a, b) < 3.5e-4


@pytest.mark.parametrize(("M", "N", "K"), SHAPES + TF32_SHAPES)
def test_tf32_has_the_range_of_float32(M, N, K):
    """Too wide for scaled fp16 within a row, too large for it at all, an infinity among them."""
    a, b = randn(M, K, device="cuda"), randn(K, N, device="cuda")
    a[:, ::2] *= 2.0**35
    b[::2] *= 2.0**-35
    assert relative_error(my_ops.matmul(a, b, precision="tf32"), a, b) < 3.5e-4
    b[::2] *= 2.0**-65
    large = a * 2.0**65
    c = my_ops.matmul(large, b, precision="tf32")
    assert relative_error(c, large, b) < 3.5e-4
    large[-1, -1] = math.inf
    assert torch.equal(my_ops.matmul(large, b, precision="tf32")[:-1], c[:-1])


@pytest.mark.parametrize(
    ("precision", "M", "N", "K"),
    [
        *((precision, *s) for precision in PRECISIONS for s in SHAPES),
        *(("tf32", *s) for s in TF32_SHAPES),
    ],
)
def test_integers_are_exact(precision, M, N, K):
    a, b = integers(M, K, largest=8), integers(K, N, largest=8)
    c = (a.double() @ b.double()).float()
    assert torch.equal(my_ops.matmul(a, b, precision=precision), c)
    a_t, b_t = a.t().contiguous().t(), b.t().contiguous().t()
    assert torch.equal(my_ops.matmul(a_t, b, precision=precision), c)
    assert torch.equal(my_ops.matmul(a, b_t, precision=precision), c)
    assert torch.equal(my_ops.matmul(a_t, b_t, precision=precision), c)


@pytest.mark.parametrize(
    ("precision", "M", "N", "K"),
    [
        *((precision, 1537, 1601, 1543) for precision in PRECISIONS),
        *(("tf32", *s) for s in TF32_SHAPES),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(precision, layout, M, N, K):
    a = matrix_layouts(M, K, torch.float32, "cuda")[layout]
    b = randn(K, N, device="cuda")
    c = my_ops.matmul(a, b, precision=precision)
    assert torch.equal(c, my_ops.matmul(a.contiguous(), b, precision=precision))
    a, b = randn(M, K, device="cuda"), matrix_layouts(K, N, torch.float32, "cuda")[layout]
    c = my_ops.matmul(a, b, precision=precision)
    assert torch.equal(c, my_ops.matmul(a, b.contiguous(), precision=precision))


@pytest.mark.parametrize("n", [4096, 8192])
@pytest.mark.parametrize("kind", ["normal", "uniform", "graded", "log_uniform"])
@pytest.mark.parametrize("precision", ACCURATE)
def test_error_is_not_above_cublas(precision, kind, n):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        a, b = operands(kind, 4096, 4096, n)
        ours = relative_error(my_ops.matmul(a, b, precision=precision), a, b)
        assert ours <= relative_error(a @ b, a, b)
    finally:
        torch.set_float32_matmul_precision(before)


def test_fp16x3_loses_what_is_small_beside_its_neighbours():
    a, b = randn(2048, 2048, device="cuda"), randn(2048, 2048, device="cuda")
    a[:, ::2] *= 2.0**35
    b[::2] *= 2.0**-35
    assert relative_error(my_ops.matmul(a, b, precision="fp16x3"), a, b) > 1e-3
    assert_accurate(my_ops.matmul(a, b, precision="bf16x6"), a, b, factor=1.0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_infinities_and_nans(precision, value):
    a, b = randn(2048, 2048, device="cuda"), randn(2048, 2048, device="cuda")
    for operand in (a, b):
        operand[77, 99] = value
        ieee = my_ops.matmul(a, b)
        c = my_ops.matmul(a, b, precision=precision)
        if precision == "tf32":
            assert torch.equal(c.isnan(), ieee.isnan())
            assert torch.equal(c[c.isinf()], ieee[ieee.isinf()])
        else:
            torch.testing.assert_close(c, ieee, rtol=0, atol=0, equal_nan=True)
        operand[77, 99] = 1


def test_large_and_small_numbers():
    a, b = randn(2048, 2048, device="cuda"), randn(2048, 2048, device="cuda")
    large = a * 2.0**100
    for precision in ACCURATE:
        assert_accurate(my_ops.matmul(large, b, precision=precision), large, b, factor=1.0)
    ieee = my_ops.matmul(large, b)
    assert torch.equal(my_ops.matmul(large, b, precision="fp16x3"), ieee)
    small = a * 2.0**-70
    assert_accurate(my_ops.matmul(small, b, precision="bf16x6"), small, b, factor=1.0)
    assert relative_error(my_ops.matmul(small, b, precision="fp16x3"), small, b) < 1e-6
    largest = torch.full((2048, 2048), torch.finfo(torch.float32).max, device="cuda")
    c = my_ops.matmul(largest, b * 0 + 2.0**-60, precision="bf16x6")
    assert_accurate(c, largest, b * 0 + 2.0**-60, factor=1.0)
    tiny = torch.full((2048, 2048), 2.0**-130, device="cuda")  # subnormal
    assert (my_ops.matmul(tiny, b * 0 + 1, precision="bf16x6") == 2.0**-119).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_small_products_are_ieee(precision):
    for M, N, K in [(64, 64, 64), (512, 512, 512), (1, 4096, 4096), (16, 4096, 4096), (5, 7, 3)]:
        a, b = randn(M, K, device="cuda"), randn(K, N, device="cuda")
        assert torch.equal(my_ops.matmul(a, b, precision=precision), my_ops.matmul(a, b))
    empty = my_ops.matmul(a[:0], b, precision=precision)
    assert empty.shape == (0, 7)
    zeros = my_ops.matmul(randn(2048, 0, device="cuda"), randn(0, 2048, device="cuda"))
    assert not zeros.any()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients(precision):
    a = randn(2, 1024, 1100, device="cuda").requires_grad_()
    b = randn(1100, 1900, device="cuda").requires_grad_()
    grad = randn(2, 1024, 1900, device="cuda")
    grad_a, grad_b = torch.autograd.grad(my_ops.matmul(a, b, precision=precision), (a, b), grad)
    rows = a.detach().flatten(0, 1)
    expected = (
        grad.double() @ b.detach().double().t(),
        rows.double().t() @ grad.double().flatten(0, 1),
    )
    tolerance = 1e-3 if precision == "tf32" else 1e-6
    for ours, exact in zip((grad_a, grad_b), expected, strict=True):
        assert (ours - exact).norm() <= tolerance * exact.norm()
    # sum() hands back a gradient of stride 0.
    grad_a, grad_b = torch.autograd.grad(my_ops.matmul(a, b, precision=precision).sum(), (a, b))
    assert (grad_a - b.detach().double().sum(1)).norm() <= 1e-3 * grad_a.norm()
    assert (grad_b - rows.double().sum(0)[:, None]).norm() <= 1e-3 * grad_b.norm()


def test_backward_precision():
    a = randn(2048, 2048, device="cuda").requires_grad_()
    b = randn(2048, 2048, device="cuda").requires_grad_()
    grad = randn(2048, 2048, device="cuda").requires_grad_()
    c = my_ops.matmul(a, b, backward_precision="bf16x6")
    assert torch.equal(c, my_ops.matmul(a, b))
    grad_a, grad_b = torch.autograd.grad(c, (a, b), grad, create_graph=True)
    assert torch.equal(grad_a, my_ops.matmul(grad, b.t(), precision="bf16x6"))
    assert torch.equal(grad_b, my_ops.matmul(a.t(), grad, precision="bf16x6"))
    (second,) = torch.autograd.grad(grad_a, grad, grad)
    assert torch.equal(second, my_ops.matmul(grad, b, precision="bf16x6"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_graph_and_stream(precision):
    a, b = randn(2048, 2048, device="cuda"), randn(2048, 2048, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        x = a * 2
        c = my_ops.matmul(x, b, precision=precision)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(c, my_ops.matmul(x, b, precision=precision))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = my_ops.matmul(a, b, precision=precision)
    for value in (1.0, math.inf, -2.0):  # into the IEEE kernel and back
        a.normal_()[5, 6] = value
        graph.replay()
        expected = my_ops.matmul(a, b, precision=precision)
        torch.testing.assert_close(c, expected, rtol=0, atol=0, equal_nan=True)
