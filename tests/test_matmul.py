"""my_ops.matmul: values against float64, layouts, gradients, transforms, compilation, errors."""

import math

import pytest
import torch
import torch._dynamo.testing
from helpers import message, no_synchronization, opcheck_dtype
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

import my_ops

DTYPES = [torch.float32, torch.float64]
PRECISIONS = ["ieee", "bf16x6", "fp16x3", "tf32"]
# Empty, single, around a strip (4), a copy (8, 16), a warp (32, 64) and a tile (128, 256).
SIZES = [0, 1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257]
# Every size as M, N and K, each time with other partners.
SHAPES = [
    (SIZES[i], SIZES[(5 * i + 3 * r + 2) % 16], SIZES[(7 * i + 5 * r + 4) % 16])
    for i in range(16)
    for r in range(3)
]
# Primes, one row, one column, a deep small product (split K), an outer product.
ODD_SHAPES = [
    (1009, 1013, 997),
    (1, 4096, 1024),
    (1024, 1, 4099),
    (16, 513, 2048),
    (2048, 9, 255),
    (64, 64, 50_000),
    (33, 7, 100_003),
    (300, 500, 1),
    # Few rows or columns: one pass over the other operand, in one slice of K and in several.
    (1, 4096, 4096),
    (3, 1000, 4100),
    (4, 999, 1031),
    (4099, 2, 130),
    (2, 3, 70_001),
]


def randn(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, dtype=dtype, device=device)


def assert_accurate(c, a, b, factor=4.0):
    """|c - a b| <= factor * u * sqrt(K) * (|a| |b|) in every element, u the unit roundoff."""
    assert c.shape == (*a.shape[:-1], b.shape[1])
    assert c.dtype == a.dtype
    wide = torch.float64 if a.dtype == torch.float32 else a.dtype
    exact = a.to(wide) @ b.to(wide)
    roundoff = torch.finfo(a.dtype).eps / 2
    bound = (
        factor * roundoff * math.sqrt(max(1, b.shape[0])) * (a.abs().to(wide) @ b.abs().to(wide))
    )
    assert ((c.to(wide) - exact).abs() <= bound).all()


def poison(device, numel):
    """Leaves NaNs in the allocator's next blocks, so that an element left unwritten is seen."""
    if numel:
        torch.full((numel,), math.nan, device=device)


def matrix_layouts(rows, cols, dtype, device):
    """[rows, cols] matrices that are not simply contiguous, by name."""
    return {
        "contiguous": randn(rows, cols, dtype=dtype, device=device),
        "transposed": randn(cols, rows, dtype=dtype, device=device).t(),
        "sliced": randn(rows, cols + 5, dtype=dtype, device=device)[:, 2:-3],
        "sliced_by_4": randn(rows, cols + 8, dtype=dtype, device=device)[:, 4:-4],
        "transposed_slice": randn(cols + 3, rows + 4, dtype=dtype, device=device)[3:, 4:].t(),
        "misaligned": randn(rows * cols + 1, dtype=dtype, device=device)[1:].view(rows, cols),
        "misaligned_transposed": randn(rows * cols + 1, dtype=dtype, device=device)[1:]
        .view(cols, rows)
        .t(),
        "every_second": randn(rows, 2 * cols, dtype=dtype, device=device)[:, ::2],
        "every_second_row": randn(2 * rows, cols, dtype=dtype, device=device)[::2],
        "expanded_rows": randn(1, cols, dtype=dtype, device=device).expand(rows, cols),
        "expanded_cols": randn(rows, 1, dtype=dtype, device=device).expand(rows, cols),
        "expanded_scalar": randn(1, 1, dtype=dtype, device=device).expand(rows, cols),
        "overlapping": randn(rows + cols, dtype=dtype, device=device).as_strided(
            (rows, cols), (1, 1)
        ),
    }


LAYOUTS = list(matrix_layouts(2, 2, torch.float32, "cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), SHAPES + ODD_SHAPES)
def test_values(device, dtype, M, N, K):
    a, b = randn(M, K, dtype=dtype, device=device), randn(K, N, dtype=dtype, device=device)
    poison(device, M * N)
    assert_accurate(my_ops.matmul(a, b), a, b)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "size",
    [
        (128, 256, 64),
        (130, 260, 70),
        (515, 1030, 257),
        (64, 64, 4096),
        (4, 1028, 516),
        (3, 515, 1030),
        (1030, 1, 515),
        (12, 2050, 300),
    ],
)
def test_integers_are_exact_in_every_layout(device, dtype, size, transpose_a, transpose_b):
    M, N, K = size
    a = torch.randint(-8, 9, (K, M) if transpose_a else (M, K), device=device).to(dtype)
    b = torch.randint(-8, 9, (N, K) if transpose_b else (K, N), device=device).to(dtype)
    a, b = a.t() if transpose_a else a, b.t() if transpose_b else b
    poison(device, M * N)
    assert torch.equal(my_ops.matmul(a, b).double(), a.double() @ b.double())


@pytest.mark.parametrize("distribution", ["normal", "uniform", "log_uniform", "graded", "cancel"])
def test_error_is_not_above_torchs(device, distribution):
    a, b = randn(96, 4096, device=device), randn(4096, 80, device=device)
    if distribution == "uniform":
        a, b = torch.rand_like(a), torch.rand_like(b)
    elif distribution == "log_uniform":
        a, b = a.sign() * 2 ** (30 * torch.rand_like(a)), b.sign() * 2 ** (30 * torch.rand_like(b))
    elif distribution == "graded":
        scale = 2.0 ** torch.linspace(-40, 0, 4096, device=device)
        a, b = a * scale, b / scale[:, None]
    elif distribution == "cancel":
        a[:, 2048:], b[2048:] = a[:, :2048], -b[:2048]
    exact = a.double() @ b.double()

    def error(c):
        return (c.double() - exact).norm() / (a.double().abs() @ b.double().abs()).norm()

    assert error(my_ops.matmul(a, b)) <= 2 * error(torch.mm(a, b)) + 1e-12
    assert_accurate(my_ops.matmul(a, b), a, b)


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_torchs_precision_switch_is_ignored(device, setting):
    # 1024.5 needs 12 bits and 1 + 2^-20 needs 21: TF32 and bfloat16 hold neither.
    a = torch.full((64, 64), 1 + 2.0**-20, device=device)
    b = torch.eye(64, device=device) * 1024.5
    wide = randn(96, 500, device=device), randn(500, 90, device=device)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        c = my_ops.matmul(a, b)
        w = my_ops.matmul(*wide)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(c, torch.full_like(c, (1 + 2.0**-20) * 1024.5))
    assert_accurate(w, *wide, factor=1.0)
    if device == "cpu" and setting != "highest":  # computed in float64 there, then rounded once
        assert torch.equal(w, (wide[0].double() @ wide[1].double()).float())


@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_ignored(device, autocast_dtype):
    a = randn(33, 40, device=device).requires_grad_()
    b = randn(40, 50, device=device).requires_grad_()
    expected = my_ops.matmul(a, b)
    grads = torch.autograd.grad(expected.square().sum(), (a, b))
    with torch.autocast(device, dtype=autocast_dtype):
        for function in (my_ops.matmul, lambda a, b: torch.ops.my_ops.matmul(a, b, "ieee")):
            c = function(a, b)
            assert c.dtype == torch.float32
            assert torch.equal(c, expected)
            for grad, reference in zip(
                torch.autograd.grad(c.square().sum(), (a, b)), grads, strict=True
            ):
                assert torch.equal(grad, reference)
        assert torch.equal(my_ops._C.matmul(a, b), expected)


@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16])
def test_16_bit_operands_under_autocast(device, autocast_dtype):
    """What a linear layer returns there is multiplied as the float32 that it was rounded from."""
    a = randn(33, 40, device=device).to(autocast_dtype).requires_grad_()
    b = randn(40, 50, device=device).requires_grad_()
    expected = my_ops.matmul(a.float(), b)
    grads = torch.autograd.grad(expected.square().sum(), (a, b))
    for function in (my_ops.matmul, lambda a, b: torch.ops.my_ops.matmul(a, b, "ieee")):
        with torch.autocast(device, dtype=autocast_dtype):
            c = function(a, b)
        assert c.dtype == torch.float32
        assert torch.equal(c, expected)
        for grad, reference in zip(
            torch.autograd.grad(c.square().sum(), (a, b)), grads, strict=True
        ):
            assert grad.dtype == reference.dtype
            assert torch.equal(grad, reference)
        with pytest.raises(RuntimeError, match="expected"):
            function(a, b)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_on_the_cpu_is_fp32(precision):
    a, b = randn(20, 300), randn(300, 30)
    assert torch.equal(my_ops.matmul(a, b, precision=precision), my_ops.matmul(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout_a", LAYOUTS)
@pytest.mark.parametrize("shape", [(36, 20, 28), (1, 9, 5), (6, 1, 1)])
def test_layouts(device, dtype, layout_a, shape):
    M, N, K = shape
    a = matrix_layouts(M, K, dtype, device)[layout_a]
    for b in matrix_layouts(K, N, dtype, device).values():
        c = my_ops.matmul(a, b)
        assert c.is_contiguous()
        # float64 sums differ by their order, so both are held to the bound, not to each other.
        assert_accurate(c, a, b)


@pytest.mark.parametrize("leading", [(), (1,), (2,), (2, 3), (0,), (2, 0, 3), (1, 2, 1, 2)])
def test_leading_dimensions(device, leading):
    b = randn(6, 7, device=device)
    a = randn(*leading, 6, device=device)
    c = my_ops.matmul(a, b)
    assert_accurate(c, a, b)
    assert not c._is_view()
    if len(leading) >= 2:
        a = randn(*reversed(leading), 6, device=device)
        a = a.permute(*reversed(range(len(leading))), len(leading))  # cannot be flattened in place
        assert_accurate(my_ops.matmul(a, b), a, b)


@pytest.mark.parametrize(
    ("M", "N", "K"), [(5, 7, 0), (0, 7, 3), (5, 0, 3), (0, 0, 3), (0, 7, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("leading", [(), (2,), (0,)])
def test_empty_shapes_and_their_gradients(device, M, N, K, leading):
    a = randn(*leading, M, K, device=device).requires_grad_()
    b = randn(K, N, device=device).requires_grad_()
    poison(device, M * N)
    c = my_ops.matmul(a, b)
    assert torch.equal(c, torch.zeros(*leading, M, N, device=device))
    grad_a, grad_b = torch.autograd.grad(c, (a, b), torch.ones_like(c))
    assert torch.equal(grad_a, torch.zeros_like(a))
    assert torch.equal(grad_b, torch.zeros_like(b))


def test_the_result_may_be_changed_in_place(device):
    a = randn(2, 3, 4, device=device).requires_grad_()
    b = randn(4, 5, device=device)
    c = my_ops.matmul(a, b)
    c += 1
    c.sum().backward()
    torch.testing.assert_close(a.grad, b.sum(1).expand(2, 3, 4))


def test_special_values(device):
    inf, nan = math.inf, math.nan
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-40, 3e38], device=device)
    a, b = values[:, None], values[None, :]
    product = (a.double() @ b.double()).float()  # one product an element: rounded once
    assert torch.equal(my_ops.matmul(a, b).nan_to_num(7), product.nan_to_num(7))
    # One infinity or NaN reaches exactly its own row and column.
    x, y = randn(70, 40, device=device), randn(40, 150, device=device)
    x[3, 5], y[11, 100] = inf, nan
    c = my_ops.matmul(x, y)
    assert c[3].isinf().sum() == 149
    assert c[:, 100].isnan().all()
    assert c.isfinite().sum() == 69 * 149


def test_two_runs_give_the_same_bits(device):
    for M, N, K in [(100, 200, 300), (64, 64, 30_000), (3, 500, 5000)]:
        a, b = randn(M, K, device=device), randn(K, N, device=device)
        assert torch.equal(my_ops.matmul(a, b), my_ops.matmul(a, b))


def functions(precision="ieee"):
    return [
        lambda a, b: my_ops.matmul(a, b, precision=precision),
        lambda a, b: torch.ops.my_ops.matmul(a, b, precision),
    ]


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)])
def test_gradcheck(device, shape):
    a = randn(*shape, dtype=torch.float64, device=device).requires_grad_()
    b = randn(4, 5, dtype=torch.float64, device=device).requires_grad_()
    for function in functions():
        assert torch.autograd.gradcheck(function, (a, b))
        assert torch.autograd.gradgradcheck(function, (a, b))
        for inputs in ((a, b.detach()), (a.detach(), b)):
            assert torch.autograd.gradcheck(function, inputs)
            assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", functions())
def test_gradient_layouts(device, layout, function):
    a = randn(20, 12, device=device).requires_grad_()
    b = randn(12, 28, device=device).t().contiguous().t().requires_grad_()
    grad = matrix_layouts(20, 28, torch.float32, device)[layout]
    grad_a, grad_b = torch.autograd.grad(function(a, b), (a, b), grad)
    assert_accurate(grad_a, grad, b.detach().t())
    assert_accurate(grad_b, a.detach().t(), grad)


@pytest.mark.parametrize("reduce", [lambda c: c.sum(), lambda c: c.mT.sum(), lambda c: c[0].sum()])
def test_gradients_of_sums(device, reduce):
    a = randn(2, 9, 12, device=device).requires_grad_()
    b = randn(12, 10, device=device).requires_grad_()
    grads = torch.autograd.grad(reduce(my_ops.matmul(a, b)), (a, b))
    torch.testing.assert_close(grads, torch.autograd.grad(reduce(a @ b), (a, b)))


def test_only_the_gradients_that_are_needed(device):
    a, b = randn(6, 5, device=device), randn(5, 4, device=device)
    for function in functions():
        for needs_a, needs_b in [(True, False), (False, True), (True, True)]:
            x, y = a.clone().requires_grad_(needs_a), b.clone().requires_grad_(needs_b)
            c = function(x, y)
            saved = [t is not None for t in c.grad_fn.saved_tensors]
            assert saved[:2] == [needs_b, needs_a]  # each gradient needs the other operand
            c.sum().backward()
            assert (x.grad is not None, y.grad is not None) == (needs_a, needs_b)
    assert my_ops.matmul(a, b).grad_fn is None


def test_functional_transforms(device):
    a, b = randn(4, 3, 6, device=device), randn(6, 5, device=device)
    vmap, grad = torch.func.vmap, torch.func.grad

    def loss(a, b):
        return my_ops.matmul(a, b).square().sum()

    def torch_loss(a, b):
        return (a @ b).square().sum()

    bs = randn(6, 5, 4, device=device)  # mapped along its last dimension
    close = torch.testing.assert_close
    close(vmap(my_ops.matmul, (1, None))(a, b), a.movedim(1, 0) @ b)
    close(vmap(my_ops.matmul, (None, 2))(a[0], bs), a[0] @ bs.movedim(2, 0))
    close(vmap(my_ops.matmul, (0, 2))(a, bs), torch.bmm(a, bs.movedim(2, 0)))
    close(vmap(vmap(my_ops.matmul, (0, None)), (None, 2))(a, bs), a @ bs.movedim(2, 0)[:, None])
    close(grad(loss, (0, 1))(a, b), grad(torch_loss, (0, 1))(a, b))
    for dims in [(0, None), (None, 2), (0, 2)]:
        arguments = (a[0] if dims[0] is None else a, b if dims[1] is None else bs)
        ours, torchs = (vmap(grad(f, (0, 1)), dims)(*arguments) for f in (loss, torch_loss))
        close(ours, torchs)
    fixed = randn(3, 5, device=device)  # the same cotangent for each a
    by_b = vmap(lambda x: torch.func.vjp(lambda b: my_ops.matmul(x, b), b)[1](fixed)[0])(a)
    close(by_b, a.mT @ fixed)
    assert vmap(my_ops.matmul)(a[:0], bs.movedim(2, 0)[:0]).shape == (0, a.shape[1], bs.shape[1])
    close(grad(lambda b: vmap(loss, (0, None))(a, b).sum())(b), grad(lambda b: torch_loss(a, b))(b))
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(my_ops.matmul, (a, b), (a, b))


def test_forward_mode_raises(device):
    forward_ad, named = torch.autograd.forward_ad, torch.ops.my_ops.matmul
    a, b = randn(3, 4, device=device), randn(4, 5, device=device)
    with forward_ad.dual_level():
        torch.testing.assert_close(my_ops.matmul(a, b), a @ b)
        dual = forward_ad.make_dual(a, a)
        with pytest.raises(RuntimeError, match=r"forward AD|jvp"):
            my_ops.matmul(dual, b)
        with pytest.raises(RuntimeError, match=r"my_ops\.matmul: expected no forward-mode"):
            named(dual, b, "ieee")
    with pytest.raises(RuntimeError, match=r"my_ops\.matmul: expected no forward-mode"):
        torch.func.jvp(lambda a: named(a, b, "ieee"), (a,), (a,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(device, dtype):
    ops, check = torch.ops.my_ops, opcheck if dtype == torch.float32 else opcheck_dtype
    a, b = randn(2, 3, 4, dtype=dtype, device=device), randn(4, 5, dtype=dtype, device=device)
    grad = randn(2, 3, 5, dtype=dtype, device=device)
    for left in (a, randn(4, 3, 2, dtype=dtype, device=device).permute(2, 1, 0), a[:, :0]):
        check(ops.matmul_forward.default, (left, b, "ieee"))
        check(ops.matmul_backward_B.default, (left, grad[:, : left.shape[1]], "ieee"))
    for left in (grad, grad.transpose(0, 1), grad[..., :1].expand(2, 3, 5)):
        check(ops.matmul_backward_A.default, (left, b, "ieee"))
    for right in (b, randn(5, 4, dtype=dtype, device=device).t(), b[:, ::2]):
        inputs = (a.clone().requires_grad_(), right.detach().clone().requires_grad_(), "ieee")
        check(ops.matmul.default, inputs)
        check(ops.matmul.default, (a, right, "ieee"))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break(device, backend):
    def step(a, b, w):
        hidden = my_ops.matmul(a, b).relu()
        return torch.ops.my_ops.matmul(hidden, w.t(), "ieee").square().sum()

    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    b = randn(6, 5, device=device).requires_grad_()
    w = randn(7, 5, device=device).requires_grad_()
    for rows in (3, 8, 11):
        a = randn(2, rows, 6, device=device).requires_grad_()
        eager = torch.autograd.grad(step(a, b, w), (a, b, w))
        torch.testing.assert_close(torch.autograd.grad(compiled(a, b, w), (a, b, w)), eager)
    assert counter.frame_count == 1


def test_raw_operator_refuses_to_lose_a_gradient(device):
    a = randn(3, 4, device=device).requires_grad_()
    c = torch.ops.my_ops.matmul_forward(a, randn(4, 2, device=device), "ieee")
    with pytest.raises(RuntimeError, match="derivative for my_ops::matmul_forward"):
        c.sum().backward()


def test_kernel_level_functions(device):
    a, b = randn(2, 30, 40, device=device), randn(40, 50, device=device)
    grad = randn(2, 30, 50, device=device)
    assert_accurate(my_ops._C.matmul(a, b), a, b)
    assert_accurate(my_ops._C.matmul(A=a, B=b, precision="ieee"), a, b)
    assert_accurate(my_ops._C.matmul_backward_A(grad, b), grad, b.t())
    assert_accurate(my_ops._C.matmul_backward_B(a, grad), a.flatten(0, 1).t(), grad.flatten(0, 1))


def test_errors(device):
    a, b = randn(3, 4, device=device), randn(4, 5, device=device)
    backward_A, backward_B = my_ops._C.matmul_backward_A, my_ops._C.matmul_backward_B
    for dtype, name in [
        (torch.float16, "Half"),
        (torch.bfloat16, "BFloat16"),
        (torch.int32, "Int"),
    ]:
        assert message(my_ops.matmul, a.to(dtype), b.to(dtype)) == (
            f"my_ops.matmul: a: expected dtype float32 or float64, got {name}"
        )
    assert message(my_ops.matmul, a, b.double()) == (
        "my_ops.matmul: b: expected the dtype of a (Float), got Double"
    )
    assert message(my_ops.matmul, a, a) == (
        "my_ops.matmul: b: expected a's last dimension as its first: [4, N], got shape [3, 4]"
    )
    assert message(my_ops.matmul, a, b[None]) == (
        "my_ops.matmul: b: expected 2 dimensions, got shape [1, 4, 5]"
    )
    assert message(my_ops.matmul, a[0, 0], b) == (
        "my_ops.matmul: a: expected at least 1 dimension, got shape []"
    )
    assert message(my_ops.matmul, a, b, precision="fp32") == (
        'my_ops.matmul: precision: expected "ieee", "bf16x6", "fp16x3" or "tf32", got "fp32"'
    )
    assert message(my_ops.matmul, a, b, backward_precision="fp32") == (
        'my_ops.matmul: backward_precision: expected "ieee", "bf16x6", "fp16x3", "tf32" or None, '
        'got "fp32"'
    )
    assert message(backward_A, randn(3, 4, device=device), b) == (
        "my_ops.matmul_backward_A: grad: expected b's last dimension as its own: [..., 5], "
        "got shape [3, 4]"
    )
    assert message(backward_B, a, randn(2, 5, device=device)) == (
        "my_ops.matmul_backward_B: grad: expected the leading dimensions of a ([3]), "
        "got shape [2, 5]"
    )
    unwritten = b.to("meta")
    assert message(my_ops.matmul, a, unwritten).endswith(f"device of a ({a.device}), got meta")
    assert "last dimension of a (5)" in message(my_ops.matmul, unwritten, unwritten)
    assert message(my_ops._C.matmul, a, b.to("meta")).startswith("my_ops.matmul: b: expected a CPU")
    assert message(my_ops._C.matmul, a.to_sparse(), b).endswith("a strided tensor, got Sparse")
    assert "lazy conjugate" in message(my_ops._C.matmul, torch._neg_view(a), b)
    with pytest.raises(TypeError):
        my_ops._C.matmul("text", b)
    for arguments, options, expected in (
        ((3, b), {}, "a: expected a tensor, got int"),
        ((a, None), {}, "b: expected a tensor, got NoneType"),
        ((a, b), {"precision": 3}, "precision: expected a string, got int"),
    ):
        actual = message(my_ops.matmul, *arguments, error=TypeError, **options)
        assert actual == f"my_ops.matmul: {expected}"
    # Nothing was broken: the next call works. The dispatcher resolves the lazy negative.
    assert_accurate(my_ops.matmul(torch._neg_view(a), b), -a, b)


@pytest.mark.cuda
class TestCuda:
    def test_errors(self):
        a, b = randn(3, 4, device="cuda"), randn(4, 5, device="cuda")
        assert message(my_ops.matmul, a, b.cpu()) == (
            "my_ops.matmul: b: expected the device of a (cuda:0), got cpu"
        )

    def test_stream_and_graph(self):
        a, b = randn(200, 5000, device="cuda"), randn(5000, 100, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(10_000_000)
            x = a * 2
            c = my_ops.matmul(x, b)
            torch.cuda.current_stream().synchronize()
        assert_accurate(c, a * 2, b)
        my_ops.matmul(a, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = my_ops.matmul(a, b)
        a.normal_()
        graph.replay()
        assert torch.equal(c, my_ops.matmul(a, b))

    def test_no_synchronization(self):
        for M, N, K in [(3, 5, 7), (300, 200, 100), (64, 64, 30_000)]:
            a, b = randn(M, K, device="cuda"), randn(N, K, device="cuda").t()
            inputs = a.requires_grad_(), b.requires_grad_()
            with no_synchronization():
                torch.autograd.grad(my_ops.matmul(a, b).sum(), inputs)

    def test_every_tile_and_split(self):
        for M in (1, 3, 5, 16, 17, 64, 100, 1000, 3000):
            for N in (1, 12, 16, 33, 64, 500, 2050):
                for K in (5, 130, 1030, 9001):
                    a = torch.randint(-4, 5, (M, K), device="cuda").float()
                    b = torch.randint(-4, 5, (K, N), device="cuda").float()
                    c = (a.double() @ b.double()).float()
                    assert torch.equal(my_ops.matmul(a, b), c), (M, N, K)
                    x = a.t().contiguous().t()
                    y = b.t().contiguous().t()
                    assert torch.equal(my_ops.matmul(x, b), c), (M, N, K)
                    assert torch.equal(my_ops.matmul(x, y), c), (M, N, K)
                    assert torch.equal(my_ops.matmul(a, y), c), (M, N, K)

    def test_rows_copied_to_vectors(self):
        a = torch.randint(-4, 5, (130, 3073), device="cuda").float().t()
        b = torch.randint(-4, 5, (130, 3075), device="cuda").float()
        c = (a.double() @ b.double()).float()
        assert torch.equal(my_ops.matmul(a, b), c)
        x, y = a.contiguous(), b.t().contiguous().t()
        for left, right in ((x, b), (a, y), (x, y)):
            assert torch.equal(my_ops.matmul(left, right), c)

    @pytest.mark.xdist_group("large")
    def test_more_than_2_to_the_31_elements(self):
        n = 46_349
        a, b = randn(n, 8, device="cuda"), randn(8, n, device="cuda")
        c = my_ops.matmul(a, b)
        assert_accurate(c[-3:], a[-3:], b)
        assert_accurate(c[:, -3:].contiguous(), a, b[:, -3:])

    @pytest.mark.xdist_group("large")
    def test_an_operand_of_more_than_2_to_the_31_elements(self):
        a = torch.zeros(70_000, 32_000, device="cuda")
        a[-2:] = randn(2, 32_000, device="cuda")
        b = randn(32_000, 3, device="cuda")
        assert_accurate(my_ops.matmul(a, b)[-3:], a[-3:], b)
        assert_accurate(my_ops.matmul(a[:, :7].t(), a[:, :5]), a[-2:, :7].t(), a[-2:, :5])

    @pytest.mark.xdist_group("large")
    def test_rows_more_than_4_gib_apart(self):
        x = torch.zeros(3, 2**30 + 64, device="cuda")
        x[:, ::1023] = 1
        ones = torch.ones(2**30 + 64, 1, device="cuda")
        count = float(len(range(0, 2**30 + 64, 1023)))
        assert my_ops.matmul(x, ones).flatten().tolist() == [count] * 3
        y = x[:, -50:]  # a short matrix with rows that far apart
        assert_accurate(my_ops.matmul(y, y.t()), y, y.t())

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_a_device_that_is_not_current(self):
        a, b = randn(50, 40, device="cuda:1"), randn(40, 30, device="cuda:1")
        assert_accurate(my_ops.matmul(a, b), a, b)
        assert torch.cuda.current_device() == 0


@settings(max_examples=150, deadline=None)
@given(
    leading=st.lists(st.integers(0, 4), max_size=2),
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    steps=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    transposed=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(DTYPES),
)
def test_any_shape_and_stride(leading, sizes, steps, transposed, dtype):
    M, N, K = sizes

    def strided(rows, cols, step, transpose):
        if transpose:
            return strided(cols, rows, step, False).mT
        return randn(*leading, rows, cols * step, dtype=dtype)[..., ::step]

    a = strided(M, K, steps[0], transposed[0]).requires_grad_()
    leading = []
    b = strided(K, N, steps[1], transposed[1]).requires_grad_()
    c = my_ops.matmul(a, b)
    assert_accurate(c.detach(), a.detach(), b.detach())
    grad = torch.randn_like(c)
    grad_a, grad_b = torch.autograd.grad(c, (a, b), grad)
    assert_accurate(grad_a, grad, b.detach().t())
    rows = c.numel() // N if N else math.prod(a.shape[:-1])
    assert_accurate(grad_b, a.detach().reshape(rows, K).t(), grad.reshape(rows, N))
