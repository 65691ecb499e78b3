"""my_ops.fp4_matmul: values against float64, gradients, what is saved, layouts, errors."""

import pytest
import torch
from fp4_reference import DTYPES, FORMATS, values
from helpers import check_gradients_in_graph, message
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

import my_ops
from my_ops.ops.fp4_matmul import PackedFactor

# One element, a row, a block and its neighbours, an odd K, a tile of the kernel and its neighbours,
# several tiles in each direction, a long sum.
SIZES = [
    (1, 1, 1),
    (1, 15, 17),
    (3, 16, 5),
    (2, 33, 65),
    (16, 64, 64),
    (17, 63, 129),
    (128, 128, 128),
    (130, 200, 131),
    (5, 4096, 7),
    # Of 2^20 elements of b on: the tensor-core kernel of Hopper, each of its tiles.
    (3, 1088, 1030),
    (40, 1088, 1030),
    (130, 1152, 1001),
    (300, 1024, 1100),
    # With b brought by the copy engine.
    (120, 512, 2064),
    (250, 2048, 528),
    (300, 1024, 4112),
]


def quantized(a, b, format):
    return my_ops.fp4_quantize(a, format), my_ops.fp4_quantize(b, format, axis=0)


def without_tensor_scale(x, format, axis=-1):
    two_level = {"two_level": False} if format == "nvfp4" else {}
    return my_ops.fp4_quantize(x, format, axis=axis, **two_level)


def assert_product(actual, a, b):
    """`actual` is a @ b but for float32 sums and one rounding; a and b are float64."""
    exact = a @ b
    info = torch.finfo(actual.dtype)
    rounding = exact.abs() * info.eps / 2 + info.smallest_normal * info.eps
    bound = (8 + 2 * a.shape[-1] ** 0.5) * 2**-24 * (a.abs() @ b.abs()) + rounding
    error = (actual.double() - exact).abs()
    assert actual.shape == exact.shape
    assert (error <= bound).all(), f"largest error / bound: {(error / bound).max():.3g}"


def gradients(a, b, grad, format, *inputs):
    for x in inputs:
        x.requires_grad_()
    found = torch.autograd.grad(my_ops.fp4_matmul(a, b, format), inputs, grad)
    for x in inputs:
        x.requires_grad_(False)
    return found


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_product_of_the_quantized_operands(device, format, M, K, N):
    for dtype in DTYPES:
        a = torch.randn(M, K, dtype=dtype, device=device)
        b = torch.randn(K, N, dtype=dtype, device=device)
        y = my_ops.fp4_matmul(a, b, format)
        qa, qb = quantized(a, b, format)
        assert y.dtype == dtype
        assert y.is_contiguous()
        assert_product(y, values(qa), values(qb))
        assert torch.equal(my_ops.fp4_matmul(qa, qb, format), y)
        assert torch.equal(my_ops.fp4_matmul(a, qb, format), y)


# On Hopper both are quantized together: rows and columns of b, their tails, b with a pitch, several
# leading dimensions, K that is not whole tiles; and where that is not done: K, N or b that is not
# aligned. The largest values come last or first.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("leading", "K", "N"),
    [
        ([520], 2176, 2056),
        ([2, 260], 2176, 2056),
        ([2, 300], 2240, 2056),
        ([300], 4096, 16384),
        ([257], 1040, 1032),
        ([257], 1152, 1028),
    ],
)
def test_operands_that_are_quantized_together(device, dtype, format, leading, K, N):
    if device == "cpu":
        K, N = K // 8, N // 8
    a = torch.randn(*leading, K, dtype=dtype, device=device)
    a.view(-1, K)[1, ::128], a.view(-1, K)[-1, -1] = 0, 100
    wide = torch.randn(K, N + 8, dtype=dtype, device=device)
    wide[-1, -20:] = -200
    # Blocks whose scales are subnormal numbers of E4M3, beside others: their codes may be cut.
    a.view(-1, K)[4:6] *= 2**-11
    wide[:, 3:5] *= 2**-10
    assert_quantized_together(a, wide, format)
    a.view(-1, K)[2, 5], a.view(-1, K)[3, 7] = torch.nan, torch.inf
    assert_quantized_together(a, wide, format)


def assert_quantized_together(a, wide, format):
    N, dtype = wide.shape[1] - 8, a.dtype
    for b in wide[:, :N].contiguous(), wide[:, :N], wide[:, :N].t().contiguous().t(), wide[:, 1:9]:
        name = str(dtype).removeprefix("torch.")
        y, *parts = torch.ops.my_ops.fp4_matmul_pair_forward(a, b, format, name)
        factors = [PackedFactor.of(q) for q in quantized(a, b, format)]
        for (packed, scale, amax, *_), found in zip(factors, (parts[:3], parts[3:]), strict=True):
            assert torch.equal(found[0], packed)
            assert torch.equal(found[1], scale)
            assert found[2].numel() == 0 if amax is None else torch.equal(found[2], amax)
        expected = torch.ops.my_ops.fp4_matmul_forward(*factors[0], *factors[1], format, name)
        assert torch.equal(y.view(torch.int16), expected.view(torch.int16))
        assert torch.equal(my_ops.fp4_matmul(a, b, format).view(torch.int16), y.view(torch.int16))


@pytest.mark.parametrize("format", FORMATS)
def test_integers_are_exact(device, format):
    # Magnitudes of E2M1 with a 6 in each block, so that the scales are exact; sums below 2^24.
    grid = torch.tensor([0, 1, 2, 3, 4, 6, -1, -2, -3, -4, -6], dtype=torch.float32)
    a = grid[torch.randint(0, 11, (150, 2048))].to(device)
    b = grid[torch.randint(0, 11, (2048, 140))].to(device)
    a[:, ::16], b[::16] = 6, -6
    qa, qb = without_tensor_scale(a, format), without_tensor_scale(b, format, axis=0)
    assert torch.equal(qa.dequantize(), a)
    assert torch.equal(qb.dequantize(), b)
    y = my_ops.fp4_matmul(qa, qb, format)
    assert torch.equal(y.double(), a.double() @ b.double())


def one_block_rows(codes, scale, format, device):
    """An FP4 matrix of codes [rows, block], each row under one scale byte."""
    packed = (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8).to(device)
    scale = scale.to(torch.uint8)[:, None].to(device)
    return my_ops.FP4Tensor(packed, scale, None, format, codes.shape[1], torch.float32)


def identity_matrix(format, device):
    block, one = {"nvfp4": (16, 0x38), "mxfp4": (32, 127)}[format]
    codes = 2 * torch.eye(block, dtype=torch.int64)
    return one_block_rows(codes, torch.full((block,), one), format, device)


@pytest.mark.parametrize(
    ("format", "scales", "one"),
    [
        ("nvfp4", range(127), 0x38),
        ("nvfp4", range(128, 255), 0x38),  # negative, which no encoder writes
        ("mxfp4", range(253), 127),
    ],
)
def test_every_code_and_scale_byte(device, format, scales, one):
    """Each row holds all codes under its scale byte; one-hot products show each value alone."""
    identity = identity_matrix(format, device)
    block = len(identity)
    assert torch.equal(identity.dequantize().cpu(), torch.eye(block))
    codes = (torch.arange(block) % 16).expand(len(scales), -1)
    q = one_block_rows(codes, torch.tensor(scales), format, device)
    assert torch.equal(my_ops.fp4_matmul(q, identity, format), q.dequantize())
    assert torch.equal(my_ops.fp4_matmul(identity, q.t(), format), q.dequantize().t())
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    sign = 1 if one in scales else -1
    row = my_ops.fp4_matmul(q, identity, format)[one % 128 if format == "nvfp4" else one, :8]
    assert torch.equal(row.cpu(), sign * magnitudes)


def test_largest_scales_of_mxfp4(device):
    """Bytes 253 and 254 are 2^126 and 2^127: codes up to 3, and 1.5, are float32 numbers."""
    identity = identity_matrix("mxfp4", device)
    for byte, codes in ((253, 6), (254, 4)):
        row = torch.arange(32)[None] % codes
        q = one_block_rows(row, torch.tensor([byte]), "mxfp4", device)
        magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3])[row] * 2.0 ** (byte - 127)
        y = my_ops.fp4_matmul(q, identity, "mxfp4")
        assert torch.equal(y.cpu(), magnitudes)


@pytest.mark.parametrize("M", [20, 100, 200, 700])
def test_scales_that_16_bits_do_not_hold(device, M):
    """Of b, with an a in FP4: in some rows alone, in every part of K."""
    N, K = 1040, 2560
    a = my_ops.fp4_quantize(torch.randn(M, K, device=device), "mxfp4")
    b = my_ops.fp4_quantize(torch.randn(N, K, device=device), "mxfp4")
    rows = torch.arange(0, N, 7, device=device)
    b.scale_bytes[rows, rows * 5 % (K // 32)] = (134 + rows % 60).to(torch.uint8)
    assert_product(my_ops.fp4_matmul(a, b.t(), "mxfp4"), values(a), values(b).t())


@pytest.mark.parametrize(("format", "byte"), [("nvfp4", 0x7F), ("nvfp4", 0xFF), ("mxfp4", 0xFF)])
def test_scale_that_is_not_a_number(device, format, byte):
    identity = identity_matrix(format, device)
    codes = torch.full((3, len(identity)), 2)
    q = one_block_rows(codes, torch.tensor([1, byte, 2]), format, device)
    y = my_ops.fp4_matmul(q, identity, format)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], q.dequantize()[::2])


@pytest.mark.parametrize("format", FORMATS)
def test_nan_stays_in_its_row(device, format):
    a = torch.randn(5, 40, device=device)
    a[2, 39] = float("nan")
    y = my_ops.fp4_matmul(a, torch.ones(40, 3, device=device), format)
    assert y[2].isnan().all()
    assert y[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("format", FORMATS)
def test_extreme_scales_whose_product_is_ordinary(device, format):
    a = torch.full((4, 64), 1e-30, device=device)
    b = torch.full((64, 4), 1e30, device=device)
    y = my_ops.fp4_matmul(a, b, format)
    qa, qb = quantized(a, b, format)
    assert_product(y, values(qa), values(qb))
    assert y.isfinite().all()
    assert (y > 10).all()


@pytest.mark.parametrize("format", FORMATS)
def test_tensor_scale_comes_before_the_rounding_to_float16(device, format):
    # The sums of codes times block scales pass 65504 by far (vllm#37135).
    a = torch.full((8, 1024), 0.01, dtype=torch.float16, device=device)
    y = my_ops.fp4_matmul(a, a.t(), format)
    q = values(my_ops.fp4_quantize(a, format))
    assert_product(y, q, q.t())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_dtype_of_the_result(device, dtype, out_dtype):
    a, b = torch.randn(17, 48, device=device).to(dtype), torch.randn(48, 9, device=device)
    y = my_ops.fp4_matmul(a.requires_grad_(), b, out_dtype=out_dtype)
    assert y.dtype == out_dtype
    qa, qb = quantized(a.detach(), b, "nvfp4")
    assert_product(y.detach(), values(qa), values(qb))
    grad = torch.randn(17, 9, device=device).to(out_dtype)
    (grad_a,) = torch.autograd.grad(y, a, grad)
    assert grad_a.dtype == dtype
    assert_product(grad_a, grad.double(), values(qb).t())


@pytest.mark.parametrize("format", FORMATS)
def test_clipped_gradients(device, format):
    """ste="clipped" of an operand masks its gradient; for the mask see test_fp4_features.py."""
    static = {"amax": 1.5} if format == "nvfp4" else {}
    a, b = torch.randn(33, 64, device=device), torch.randn(64, 32, device=device)
    a.requires_grad_()
    quantized = [my_ops.fp4_quantize(a, format, ste=ste, **static) for ste in ("plain", "clipped")]
    (mask,) = torch.autograd.grad(quantized[1].dequantize().sum(), a, retain_graph=True)
    assert 20 < (mask == 0).sum() < a.numel() / 2
    plain, clipped = (
        torch.autograd.grad(my_ops.fp4_matmul(q, b, format).pow(2).sum(), a)[0] for q in quantized
    )
    assert torch.equal(clipped, plain * mask)


@pytest.mark.parametrize("format", FORMATS)
def test_zeros(device, format):
    a = torch.randn(4, 64, device=device)
    a[1] = 0
    y = my_ops.fp4_matmul(a, torch.randn(64, 5, device=device), format)
    assert (y[1] == 0).all()
    assert y.isfinite().all()
    zeros, b = torch.zeros(4, 64, device=device), torch.randn(64, 5, device=device)
    assert (my_ops.fp4_matmul(zeros, b, format) == 0).all()
    grad_a, grad_b = gradients(zeros, b, torch.ones(4, 5, device=device), format, zeros, b)
    assert (grad_b == 0).all()
    assert grad_a.isfinite().all()


@pytest.mark.parametrize(("M", "K", "N"), [(0, 32, 4), (4, 32, 0), (5, 0, 7), (0, 0, 0)])
@pytest.mark.parametrize("format", FORMATS)
def test_empty(device, format, M, K, N):
    a, b = torch.randn(M, K, device=device), torch.randn(K, N, device=device)
    y = my_ops.fp4_matmul(a, b, format)
    assert y.shape == (M, N)
    assert (y == 0).all()
    grad_a, grad_b = gradients(a, b, torch.ones(M, N, device=device), format, a, b)
    assert grad_a.shape == a.shape
    assert (grad_a == 0).all()
    assert grad_b.shape == b.shape
    assert (grad_b == 0).all()
    assert my_ops.square(torch.ones(2, device=device)).sum() == 2  # the device still works


@pytest.mark.parametrize("leading", [(), (3,), (2, 3, 4), (2, 0, 3)])
def test_leading_dimensions(device, leading):
    a, b = torch.randn(*leading, 40, device=device), torch.randn(40, 6, device=device)
    flat = a.reshape(a.numel() // 40, 40)
    y = my_ops.fp4_matmul(a, b)
    assert y.shape == (*leading, 6)
    assert torch.equal(y.reshape(-1, 6), my_ops.fp4_matmul(flat, b))
    grad_a, grad_b = gradients(a, b, torch.ones_like(y), "nvfp4", a, b)
    expected = gradients(flat, b, torch.ones(len(flat), 6, device=device), "nvfp4", flat, b)
    assert torch.equal(grad_a.reshape(-1, 40), expected[0])
    assert torch.equal(grad_b, expected[1])
    a.requires_grad_()
    y = my_ops.fp4_matmul(a, b)
    y += 1  # no view, on which this would fail


@pytest.mark.parametrize("format", FORMATS)
def test_operands_of_any_layout(device, format):
    x = torch.randn(6, 50, 40, device=device)
    b = torch.randn(40, 48, device=device)
    for a in (x, x.transpose(0, 1), x[:, ::3], x[:1].expand(4, 50, 40)):
        expected = my_ops.fp4_matmul(a.contiguous(), b, format)
        assert torch.equal(my_ops.fp4_matmul(a, b, format), expected)
    misaligned = torch.randn(40 * 48 + 1, device=device)[1:].view(40, 48)
    for right in (b.t().contiguous().t(), b[:, ::2], b[:1].expand(40, 48), misaligned):
        expected = my_ops.fp4_matmul(x[0], right.contiguous(), format)
        assert torch.equal(my_ops.fp4_matmul(x[0], right, format), expected)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), [(7, 33, 19), (64, 96, 130), (37, 70, 65)])
def test_operands_quantized_along_the_other_dimension(device, format, M, K, N):
    """An FP4Tensor is taken as it is, whichever dimension its blocks lie along."""
    a, b = torch.randn(M, K, device=device), torch.randn(K, N, device=device)
    lefts = [my_ops.fp4_quantize(a, format), my_ops.fp4_quantize(a, format, axis=0)]
    rights = [my_ops.fp4_quantize(b, format), my_ops.fp4_quantize(b, format, axis=0)]
    grad = torch.randn(M, N, device=device)
    for qa in lefts:
        for qb in rights:
            assert_product(my_ops.fp4_matmul(qa, qb, format), values(qa), values(qb))
    for q in lefts:
        (grad_b,) = gradients(q, b, grad, format, b)
        assert_product(grad_b, values(q).t(), grad.double())
    for q in rights:
        (grad_a,) = gradients(a, q, grad, format, a)
        assert_product(grad_a, grad.double(), values(q).t())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", FORMATS)
def test_gradients_are_straight_through(device, format, dtype):
    a = torch.randn(2, 33, 50, dtype=dtype, device=device)
    b = torch.randn(50, 27, device=device)
    qa, qb = quantized(a, b, format)
    grad = torch.randn(2, 33, 27, device=device).to(dtype)
    grad_a, grad_b = gradients(a, b, grad, format, a, b)
    assert grad_a.dtype == dtype
    assert grad_b.dtype == torch.float32
    assert_product(grad_a, grad.double(), values(qb).t())
    assert_product(grad_b, values(qa).flatten(0, 1).t(), grad.double().flatten(0, 1))

    def straight_through(x, q):
        return x + (values(q) - x).detach()

    wide = a.double().requires_grad_(), b.double().requires_grad_()
    y = straight_through(wide[0], qa) @ straight_through(wide[1], qb)
    expected = torch.autograd.grad(y, wide, grad.double())
    torch.testing.assert_close(grad_a, expected[0].to(dtype))
    torch.testing.assert_close(grad_b, expected[1].float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), [(1032, 1024, 1104), (2056, 2304, 1032)])
def test_gradients_of_a_large_product(device, format, dtype, M, K, N):
    """From 2^20 elements of a factor on, the gradients have a kernel of their own on Hopper. In the
    second case the first product has more tiles than fit at once."""
    if device == "cpu":
        M, K, N = M // 8, K // 8, N // 8
    a = torch.randn(M, K, dtype=dtype, device=device)
    grad = torch.randn(M, N, dtype=dtype, device=device)
    for b_dtype in (dtype, torch.float32):
        b = torch.randn(K, N, dtype=b_dtype, device=device)
        qa, qb = quantized(a, b, format)
        left, right = PackedFactor.of(qa), PackedFactor.of(qb)
        for layout in (grad, grad.t().contiguous().t()):
            grad_a, grad_b = gradients(a, b, layout, format, a, b)
            assert_product(grad_a, grad.double(), values(qb).t())
            assert_product(grad_b, values(qa).t(), grad.double())
            types = [str(x.dtype).removeprefix("torch.") for x in (a, b)]
            one = torch.ops.my_ops.fp4_matmul_backward_A(layout, *right, format, types[0])
            other = torch.ops.my_ops.fp4_matmul_backward_B(*left, layout, format, types[1])
            assert torch.equal(grad_a, one)
            assert torch.equal(grad_b, other)
            alone = my_ops.fp4_matmul(a.requires_grad_(), b, format)
            assert torch.equal(torch.autograd.grad(alone, a, layout)[0], one)
            a.requires_grad_(False)


def test_gradient_by_hand(device):
    # 0.2 is quantized to 0, and its row of grad_B is 0; its own gradient is not.
    a = torch.zeros(1, 16, device=device)
    a[0, :3] = torch.tensor([1, 0.2, 6])
    b = torch.ones(16, 1, device=device)
    assert my_ops.fp4_matmul(a, b).item() == pytest.approx(7, rel=1e-6)
    grad_a, grad_b = gradients(a, b, torch.ones(1, 1, device=device), "nvfp4", a, b)
    torch.testing.assert_close(grad_a, torch.ones_like(a))
    torch.testing.assert_close(grad_b[:3, 0].cpu(), torch.tensor([1.0, 0, 6]))


def test_gradients_through_fp4_tensors(device):
    x = torch.randn(5, 40, device=device, requires_grad=True)
    w = torch.randn(9, 40, device=device, requires_grad=True)
    y = my_ops.fp4_matmul(my_ops.fp4_quantize(x), my_ops.fp4_quantize(w).t())
    expected = my_ops.fp4_matmul(x, w.t())
    assert torch.equal(y, expected)
    grads = [torch.autograd.grad(out.pow(2).sum(), (x, w)) for out in (y, expected)]
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


@pytest.mark.parametrize("format", FORMATS)
def test_gradients_of_any_layout(device, format):
    a, b = torch.randn(34, 40, device=device), torch.randn(40, 48, device=device)
    grads = {
        "stride 0, as of sum()": torch.ones((), device=device).expand(34, 48),
        "transposed": torch.randn(48, 34, device=device).t(),
        "sliced": torch.randn(34, 96, device=device)[:, ::2],
        "one row": torch.randn(1, 48, device=device).expand(34, 48),
        "misaligned": torch.randn(34 * 48 + 1, device=device)[1:].view(34, 48),
        "padded": torch.randn(34, 51, device=device)[:, 2:50],
    }
    for name, grad in grads.items():
        actual = gradients(a, b, grad, format, a, b)
        expected = gradients(a, b, grad.contiguous(), format, a, b)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, msg=name)


def test_only_the_asked_for_gradient_is_computed(device, monkeypatch):
    from my_ops.ops import fp4_matmul as module

    calls = []

    def counted(name):
        op = getattr(module, name)

        def call(*arguments):
            calls.append(name)
            return op(*arguments)

        return call

    for name in ("_backward_A", "_backward_B", "_pair_backward"):
        monkeypatch.setattr(module, name, counted(name))
    a, b = torch.randn(4, 16, device=device), torch.randn(16, 4, device=device)
    gradients(a, b, torch.ones(4, 4, device=device), "nvfp4", a)
    gradients(a, b, torch.ones(4, 4, device=device), "nvfp4", b)
    gradients(a, b, torch.ones(4, 4, device=device), "nvfp4", a, b)
    assert calls == ["_backward_A", "_backward_B", "_pair_backward"]


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_saved_is_packed(device, format):
    a = torch.randn(256, 512, dtype=torch.bfloat16, device=device, requires_grad=True)
    b = torch.randn(512, 128, dtype=torch.bfloat16, device=device, requires_grad=True)
    saved = {}

    def keep(tensor):
        saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        my_ops.fp4_matmul(a, b, format)
    assert 0.25 * (a.nbytes + b.nbytes) < sum(saved.values()) <= 0.30 * (a.nbytes + b.nbytes)


def test_second_derivative_is_refused(device):
    a = torch.randn(4, 16, device=device, requires_grad=True)
    b = torch.randn(16, 4, device=device, requires_grad=True)
    sentence = "my_ops.fp4_matmul: its gradients cannot be differentiated again"
    (grad_a,) = torch.autograd.grad(my_ops.fp4_matmul(a, b).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match=sentence):  # the gradient of sum() needs none itself
        (grad_a.pow(2).sum() + b.sum()).backward()
    (grad_a,) = torch.autograd.grad(my_ops.fp4_matmul(a, b).pow(2).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match=sentence):
        torch.autograd.grad(grad_a.sum(), b)
    inner = torch.func.grad(lambda a, b: my_ops.fp4_matmul(a, b).sum())
    with pytest.raises(RuntimeError, match=sentence):
        torch.func.grad(lambda b: inner(a.detach(), b).sum())(b.detach())


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_functional_transforms(device):
    a, b = torch.randn(3, 4, 32, device=device), torch.randn(32, 5, device=device)
    rows = torch.stack([my_ops.fp4_matmul(x, b) for x in a])
    assert torch.equal(torch.func.vmap(lambda x: my_ops.fp4_matmul(x, b))(a), rows)
    scalar = lambda x: my_ops.fp4_matmul(x, b).pow(2).sum()  # noqa: E731
    expected = torch.stack([torch.func.grad(scalar)(x) for x in a])
    leaf = a[0].clone().requires_grad_()
    torch.testing.assert_close(expected[0], torch.autograd.grad(scalar(leaf), leaf)[0])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(scalar))(a), expected)
    mapped = lambda x: torch.func.vmap(scalar)(x).sum()  # noqa: E731
    torch.testing.assert_close(torch.func.grad(mapped)(a), expected)
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(scalar, (a[0],), (a[0],))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a[0], a[0])
        with pytest.raises(RuntimeError, match="jvp"):
            my_ops.fp4_matmul(dual, b)


def test_autocast_is_that_of_torch_matmul(device):
    a, b = torch.randn(9, 64, device=device), torch.randn(64, 7, device=device)
    expected = my_ops.fp4_matmul(a.bfloat16(), b)
    quantized = my_ops.fp4_quantize(a)
    a.requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        y = my_ops.fp4_matmul(a, b)
        assert y.dtype == torch.matmul(a, b).dtype == torch.bfloat16
        assert torch.equal(y, expected)
        (grad_a,) = torch.autograd.grad(y.sum(), a)
        assert my_ops.fp4_matmul(quantized, b).dtype == torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert my_ops.fp4_matmul(a, b).dtype == torch.float32
    assert grad_a.dtype == torch.float32


def test_precision_flags_change_nothing(device):
    a, b = torch.randn(64, 512, device=device), torch.randn(512, 64, device=device)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        y = my_ops.fp4_matmul(a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    qa, qb = quantized(a, b, "nvfp4")
    assert_product(y, values(qa), values(qb))


@pytest.mark.parametrize("format", FORMATS)
def test_opcheck(device, format):
    ops = torch.ops.my_ops
    a, b = torch.randn(2, 3, 37, device=device), torch.randn(37, 5, device=device)
    grad = torch.randn(2, 3, 5, device=device, dtype=torch.bfloat16)
    opcheck(ops.fp4_matmul_pair_forward.default, (a, b, format, "bfloat16"))
    qa, qb = quantized(a, b, format)
    right = tuple(PackedFactor.of(qb))
    other = PackedFactor.of(my_ops.fp4_quantize(a[0], format, axis=0))
    for left, dy in ((PackedFactor.of(qa), grad), (other, grad[0])):
        opcheck(ops.fp4_matmul_forward.default, (*left, *right, format, "bfloat16"))
        for layout in (dy, dy.mT.contiguous().mT, dy[..., :1].expand_as(dy)):
            opcheck(ops.fp4_matmul_backward_A.default, (layout, *right, format, "float32"))
            opcheck(ops.fp4_matmul_backward_B.default, (*left, layout, format, "float16"))
            both = (layout, *left, *right, format, "float32", "float16")
            opcheck(ops.fp4_matmul_pair_backward.default, both)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break(device, backend):
    def step(a, b):
        return my_ops.fp4_matmul(torch.tanh(a), b).pow(2).sum()

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    b = torch.randn(48, 6, device=device, requires_grad=True)
    for rows in (3, 8, 17):
        a = torch.randn(rows, 48, device=device, requires_grad=True)
        expected = torch.autograd.grad(step(a, b), (a, b))
        torch.testing.assert_close(torch.autograd.grad(compiled(a, b), (a, b)), expected)


def test_compile_with_a_quantized_operand(device):
    q = my_ops.fp4_quantize(torch.randn(6, 48, device=device), "mxfp4").t()

    def product(a):
        return my_ops.fp4_matmul(a, q, "mxfp4")

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    a = torch.randn(5, 48, device=device, requires_grad=True)
    results = compiled(a), product(a)
    assert torch.equal(*results)
    assert torch.equal(*(torch.autograd.grad(y.pow(2).sum(), a)[0] for y in results))


def test_two_runs_and_any_batch_give_the_same_bits(device):
    a = torch.randn(300, 640, dtype=torch.bfloat16, device=device)
    qa = my_ops.fp4_quantize(a)
    qb = my_ops.fp4_quantize(torch.randn(640, 200, device=device), axis=0)
    y = my_ops.fp4_matmul(qa, qb)
    assert torch.equal(my_ops.fp4_matmul(qa, qb), y)
    if device == "cuda":  # on the CPU, at::mm chooses its order of summation by the shape
        assert torch.equal(my_ops.fp4_matmul(qa[:5], qb), y[:5])


def test_kernel_level_functions(device):
    a, b = torch.randn(4, 37, device=device), torch.randn(37, 5, device=device)
    grad = torch.randn(4, 5, device=device)
    left, right = (PackedFactor.of(q) for q in quantized(a, b, "nvfp4"))
    assert torch.equal(my_ops._C.fp4_matmul(*left, *right), my_ops.fp4_matmul(a, b))
    grad_a, grad_b = gradients(a, b, grad, "nvfp4", a, b)
    assert torch.equal(my_ops._C.fp4_matmul_backward_A(grad, *right), grad_a)
    assert torch.equal(my_ops._C.fp4_matmul_backward_B(*left, grad), grad_b)


def test_raw_operator_refuses_to_lose_a_gradient(device):
    right = PackedFactor.of(my_ops.fp4_quantize(torch.randn(4, 16, device=device)))
    grad = torch.randn(3, 16, device=device, requires_grad=True)
    out = torch.ops.my_ops.fp4_matmul_backward_A(grad, *right, "nvfp4", "float32")
    with pytest.raises(RuntimeError, match="derivative for my_ops::fp4_matmul_backward_A"):
        out.sum().backward()


def test_errors(device):
    a, b = torch.ones(4, 32, device=device), torch.ones(32, 3, device=device)
    q = my_ops.fp4_quantize(a, "mxfp4")
    for arguments, expected in {
        (a, b, "fp4"): "format: expected 'nvfp4' or 'mxfp4', got 'fp4'",
        (a.double(), b): "a: expected float32, float16 or bfloat16, got torch.float64",
        (a, b.int()): "b: expected float32, float16 or bfloat16, got torch.int32",
        ("text", b): "a: expected a tensor, got str",
        (a, None): "b: expected a tensor, got NoneType",
        (a, b[:16]): "b: expected the shape [32, N], got [16, 3]",
        (a, b[None]): "b: expected the shape [32, N], got [1, 32, 3]",
        (a[0, 0], b): "a: expected at least one dimension, got none",
        (q, b): "a: expected the format 'nvfp4' of the product, got 'mxfp4'",
        (a, q.t()): "b: expected the format 'nvfp4' of the product, got 'mxfp4'",
        (a, b.to("meta")): f"b: expected the device of a ({a.device}), got meta",
    }.items():
        assert message(my_ops.fp4_matmul, *arguments) == f"my_ops.fp4_matmul: {expected}"
    assert my_ops.fp4_matmul(a, b).shape == (4, 3)  # the device still works


def test_errors_of_the_raw_operators(device):
    a, b = torch.ones(4, 32, device=device), torch.ones(32, 3, device=device)
    left, right = (PackedFactor.of(q) for q in quantized(a, b, "nvfp4"))
    mx_left, mx_right = (PackedFactor.of(q) for q in quantized(a, b, "mxfp4"))
    short = PackedFactor.of(my_ops.fp4_quantize(b[:16], axis=0))
    grad = torch.ones(4, 3, device=device)
    names = "nvfp4", "float32"
    for op, arguments, expected in (
        ("forward", (*left, *right, "int4", "float32"), "format: expected 'nvfp4' or 'mxfp4', "),
        ("forward", (*left, *right, "nvfp4", "float64"), "dtype: expected 'float32', 'float16' or"),
        (
            "forward",
            (*left._replace(packed=left.packed[:, :8]), *right, *names),
            "a_packed: expected the shape [4, 16], got [4, 8]",
        ),
        (
            "forward",
            (*left, *right._replace(scale_bytes=right.scale_bytes.int()), *names),
            "b_scale: expected uint8, got Int",
        ),
        (
            "forward",
            (*left, *right._replace(amax=right.amax.double()), *names),
            "b_amax: expected one float32 element, got 1 of Double",
        ),
        (
            "forward",
            (*left, *right._replace(shape=(32, 3, 1)), *names),
            "b_shape: expected two dimensions, got [32, 3, 1]",
        ),
        (
            "forward",
            (*left._replace(shape=(2, 2, 32), transposed=True), *right, *names),
            "a_shape: expected two dimensions, got [2, 2, 32]",
        ),
        (
            "forward",
            (*mx_left._replace(amax=left.amax), *mx_right, "mxfp4", "float32"),
            "a_amax: expected None (the format 'mxfp4' has no tensor scale), got a tensor",
        ),
        (
            "forward",
            (*left, *short, *names),
            "b_shape: expected as many rows as a has columns (32), got [16, 3]",
        ),
        ("pair_forward", (a.double(), b, *names), "a: expected float32, float16 or bfloat16, got"),
        ("pair_forward", (a, b[:16], *names), "b: expected the shape [32, N], got [16, 3]"),
        (
            "backward_A",
            (grad[:, :2], *right, *names),
            "grad: expected as many columns as b has (3), got [4, 2]",
        ),
        (
            "pair_backward",
            (grad[:, :2], *left, *right, *names, "float32"),
            "grad: expected as many columns as b has (3), got [4, 2]",
        ),
        (
            "pair_backward",
            (grad[:2], *left, *right, *names, "float32"),
            "grad: expected the leading dimensions of a_shape [4, 32], got [2, 3]",
        ),
        (
            "backward_A",
            (grad.double(), *right, *names),
            "grad: expected float32, float16 or bfloat16, got Double",
        ),
        (
            "backward_B",
            (*left, grad[:2], *names),
            "grad: expected the leading dimensions of a_shape [4, 32], got [2, 3]",
        ),
    ):
        name = "fp4_matmul" if "forward" in op else f"fp4_matmul_{op}"
        actual = message(getattr(torch.ops.my_ops, f"fp4_matmul_{op}"), *arguments)
        assert actual.startswith(f"my_ops.{name}: {expected}"), actual


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("M", "K", "N", "dtype"),
    [(64, 128, 32, torch.float32), (1040, 2176, 2056, torch.bfloat16)],
)
def test_no_synchronization_and_graph_capture(M, K, N, dtype):
    a, b = (torch.randn(*shape, dtype=dtype, device="cuda") for shape in ((M, K), (K, N)))
    leaves = a.requires_grad_(), b.requires_grad_()

    def step():
        y = my_ops.fp4_matmul(a, b)
        return y.detach(), *torch.autograd.grad(y.pow(2).sum(), leaves)

    check_gradients_in_graph(step, a)


@settings(max_examples=60, deadline=None)
@given(
    leading=st.lists(st.integers(0, 3), max_size=2),
    M=st.integers(1, 20),
    K=st.integers(0, 70),
    N=st.integers(0, 20),
    format=st.sampled_from(FORMATS),
    dtype=st.sampled_from(DTYPES),
    transposed=st.booleans(),
)
def test_any_shape(leading, M, K, N, format, dtype, transposed):
    a = torch.randn(*leading, M, K, dtype=dtype)
    b = torch.randn(N, K, dtype=dtype).t() if transposed else torch.randn(K, N, dtype=dtype)
    y = my_ops.fp4_matmul(a, b, format)
    qa, qb = quantized(a, b, format)
    assert_product(y, values(qa), values(qb))
