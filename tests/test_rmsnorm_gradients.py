"""my_ops.rmsnorm and add_rmsnorm: gradients, the contracts of their operators, compilation."""

import pytest
import torch
import torch._dynamo.testing
from helpers import opcheck_dtype
from rmsnorm_reference import FLOATS, assert_accurate, exact, formula, sample
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import my_ops

# Error of a gradient against float64, as a fraction of its largest element: one rounding of the
# result, and for float32 those of the product on top.
TOLERANCE = {
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.float32: 2.0**-21,
    torch.float64: 2.0**-44,
}


def assert_gradient(actual, expected, dtype=None, terms=0.0):
    """`terms`: the size of what is summed, where the sum itself cancels."""
    assert actual.dtype == (dtype or actual.dtype)
    error = (actual.double() - expected.double()).abs().max()
    scale = expected.double().abs().max().clamp(min=1e-30)
    assert error <= TOLERANCE[actual.dtype] * max(scale, terms)


def gradients(function, inputs, *grads):
    inputs = [t.detach().requires_grad_() for t in inputs]
    outputs = function(*inputs)
    return torch.autograd.grad(outputs, inputs, grads)


def exact_gradients(x, weight, grad, **options):
    inputs = [x.double(), weight.double()]
    return gradients(lambda x, w: formula(x, w, **options), inputs, grad.double())


# As for the forward; the backward changes from 8 lanes to a warp to a block at 256 and 1024.
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("H", [1, 7, 64, 250, 768, 1111, 5120, 40_000, 600_001])
def test_values(device, dtype, H):
    rows = 5 if H > 10_000 else 131
    x, grad = sample((rows, H), dtype, device), sample((rows, H), dtype, device)
    weight = sample((H,), dtype, device)
    expected_x, expected_weight = exact_gradients(x, weight, grad)
    actual_x, actual_weight = gradients(my_ops.rmsnorm, (x, weight), grad)
    # At H = 1 grad_x is the difference of two terms that are equal but for eps, and grad_weight one
    # sum of terms of either sign, which may cancel: its size is that of their root sum of squares.
    rstd = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    terms = (rstd * grad.double() * weight.double()).abs().max() if H == 1 else 0.0
    assert_gradient(actual_x, expected_x, terms=terms)
    terms = (rstd * x.double() * grad.double()).norm(dim=0).max() if H == 1 else 0.0
    assert_gradient(actual_weight, expected_weight, terms=terms)


def test_not_worse_than_torch(device):
    x, grad = sample((300, 1000), torch.float32, device), sample((300, 1000), torch.float32, device)
    weight = sample((1000,), torch.float32, device)
    expected = exact_gradients(x, weight, grad)
    ours = gradients(lambda x, w: my_ops.rmsnorm(x, w), (x, weight), grad)
    torchs = gradients(
        lambda x, w: torch.nn.functional.rms_norm(x, (1000,), w, 1e-6), (x, weight), grad
    )
    for our, their, reference in zip(ours, torchs, expected, strict=True):
        assert (our - reference).abs().max() <= 2 * (their - reference).abs().max()


@pytest.mark.parametrize(("eps", "offset"), [(1e-6, 0.0), (None, 1.0)])
@pytest.mark.parametrize("shape", [(3, 4, 6), (5,), (2, 1), (4, 9)])
def test_gradcheck(device, shape, eps, offset):
    x, residual = (sample(shape, torch.float64, device).requires_grad_() for _ in range(2))
    weight = sample(shape[-1:], torch.float64, device).requires_grad_()

    def one(x, weight=None):
        return my_ops.rmsnorm(x, weight, eps, weight_offset=offset)

    def add(x, residual, weight=None):
        return my_ops.add_rmsnorm(x, residual, weight, eps, weight_offset=offset)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(one, (x,))
        assert check(one, (x, weight))
        assert check(one, (x.detach(), weight))
        assert check(one, (x, weight.detach()))
        assert check(add, (x, residual, weight))
        assert check(lambda *args: add(*args)[0], (x, residual, weight))
        assert check(lambda *args: add(*args)[1], (x, residual))
    assert torch.autograd.gradgradcheck(torch.ops.my_ops.rmsnorm, (x, weight, 1e-6))


def test_third_derivative(device):
    x = sample((2, 5), torch.float64, device).requires_grad_()

    def second(function):
        (first,) = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)
        (grad,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.pow(2).sum(), x)[0]

    torch.testing.assert_close(second(my_ops.rmsnorm), second(formula))


def test_first_derivative_has_the_same_bits_with_create_graph(device):
    x, weight = sample((7, 33), torch.float32, device), sample((33,), torch.float32, device)
    x.requires_grad_()
    weight.requires_grad_()
    loss = my_ops.rmsnorm(x, weight).square().sum()
    plain = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    recorded = torch.autograd.grad(loss, (x, weight), create_graph=True)
    assert all(map(torch.equal, plain, recorded))


@pytest.mark.parametrize("out_dtype", [None, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("w_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_mixed_dtypes(device, dtype, w_dtype, out_dtype):
    x, weight = sample((40, 96), dtype, device), sample((96,), w_dtype, device)
    grad = sample((40, 96), out_dtype or dtype, device)
    actual = gradients(lambda x, w: my_ops.rmsnorm(x, w, out_dtype=out_dtype), (x, weight), grad)
    for result, reference, like in zip(
        actual, exact_gradients(x, weight, grad), (x, weight), strict=True
    ):
        assert_gradient(result, reference, like.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("H", [96, 1536, 5120])
def test_add(device, dtype, H):
    x, residual, grad, grad_sum = (sample((21, H), dtype, device) for _ in range(4))
    weight = sample((H,), torch.float32, device)
    grad_x, grad_residual, grad_weight = gradients(
        my_ops.add_rmsnorm, (x, residual, weight), grad, grad_sum
    )
    expected_x, expected_weight = exact_gradients(x + residual, weight, grad)
    assert torch.equal(grad_x, grad_residual)
    assert_gradient(grad_x, expected_x + grad_sum.double())
    assert_gradient(grad_weight, expected_weight)


def test_add_with_one_output_used(device):
    """quack#52: with the residual in and the sum not used, its gradient was lost."""
    x, residual = (sample((6, 40), torch.float32, device).requires_grad_() for _ in range(2))
    weight = sample((40,), torch.float32, device).requires_grad_()
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    grad_x, grad_residual = torch.autograd.grad(y.square().sum(), (x, residual), retain_graph=True)
    assert torch.equal(grad_x, grad_residual)
    expected = exact_gradients(total, weight, 2 * y.detach())[0]
    assert_gradient(grad_x, expected)
    grads = torch.autograd.grad(total.sum(), (x, residual, weight), allow_unused=True)
    assert grads[0].eq(1).all()
    assert grads[1].eq(1).all()
    assert grads[2] is None


def gradient_layouts(device, dtype):
    grad = sample((6, 10, 64), dtype, device)
    return {
        "transposed": sample((6, 64, 10), dtype, device).transpose(1, 2),
        "permuted rows": sample((10, 6, 64), dtype, device).transpose(0, 1),
        "sliced": sample((6, 20, 80), dtype, device)[:, ::2, 16:],
        "misaligned": sample((6, 10, 65), dtype, device)[..., 1:],
        "one number": grad[:1, :1, :1].expand(6, 10, 64),
        "one row": grad[:1, :1].expand(6, 10, 64),
        "one column": grad[..., :1].expand(6, 10, 64),
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", list(gradient_layouts("cpu", torch.float32)))
def test_gradient_layouts(device, dtype, name):
    grad = gradient_layouts(device, dtype)[name]
    x, residual = (sample(grad.shape, dtype, device) for _ in range(2))
    weight = sample((64,), dtype, device)
    dense = grad.contiguous()
    wide = sample((10, 12, 80), dtype, device)
    for x_view in (
        x,
        wide[:, ::2, 16:].transpose(0, 1),
        wide[:, 1:7, 1:65].transpose(0, 1),
        sample((6, 10, 128), dtype, device)[..., ::2],
        sample((6, 64, 10), dtype, device).transpose(1, 2),
        x[:1].expand(6, 10, 64),
    ):
        actual = gradients(my_ops.rmsnorm, (x_view, weight), grad)
        expected = gradients(my_ops.rmsnorm, (x_view.contiguous(), weight), dense)
        assert all(map(torch.equal, actual, expected))
    actual = gradients(my_ops.add_rmsnorm, (x, residual, weight), grad, grad.flip(0))
    expected = gradients(my_ops.add_rmsnorm, (x, residual, weight), dense, dense.flip(0))
    assert all(map(torch.equal, actual, expected))


def test_gradient_of_sum_has_stride_zero(device):
    x = sample((9, 33), torch.float32, device).requires_grad_()
    weight = sample((33,), torch.float32, device).requires_grad_()
    my_ops.rmsnorm(x, weight).sum().backward()
    expected = exact_gradients(x, weight, torch.ones_like(x))
    assert_gradient(x.grad, expected[0])
    assert_gradient(weight.grad, expected[1])


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [((True, True), ""), ((True, False), "_x"), ((False, True), "_weight")],
)
def test_only_the_gradients_that_are_asked_for_are_computed(device, wanted, expected):
    x, weight = sample((4, 8), torch.float32, device), sample((8,), torch.float32, device)
    x.requires_grad_(wanted[0])
    weight.requires_grad_(wanted[1])
    loss = my_ops.rmsnorm(x, weight).sum()
    with Recorder() as recorder:
        loss.backward()
    ours = [name for name in recorder.names if "my_ops" in name]
    assert ours == [f"my_ops.rmsnorm_backward{expected}.default"]
    assert (x.grad is not None, weight.grad is not None) == wanted


def test_forward_saves_only_x_and_weight(device):
    x = sample((4, 8), torch.bfloat16, device).requires_grad_()
    weight = sample((8,), torch.float32, device).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = my_ops.rmsnorm(x, weight)
    assert [t.data_ptr() for t in saved] == [x.data_ptr(), weight.data_ptr()]
    y += 1  # the output is nobody's view and nobody needs it
    with torch.no_grad():
        assert my_ops.rmsnorm(x, weight).grad_fn is None


def test_weight_gradient_has_the_same_bits_every_time(device):
    x, grad = (sample((3000, 300), torch.bfloat16, device) for _ in range(2))
    weight = sample((300,), torch.float32, device)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results += [torch.ops.my_ops.rmsnorm_backward(grad, None, x, weight, 1e-6, 0.0)]
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_functional_transforms(device):
    x, weight = sample((4, 5, 6), torch.float32, device), sample((6,), torch.float32, device)
    vmap, grad = torch.func.vmap, torch.func.grad
    y = my_ops.rmsnorm(x, weight)
    assert torch.equal(vmap(my_ops.rmsnorm, (1, None), 1)(x, weight), y)
    many = torch.stack([weight, 2 * weight, -weight, weight])
    assert torch.equal(vmap(my_ops.rmsnorm)(x, many)[1], my_ops.rmsnorm(x[1], many[1]))

    def loss(x, weight, function=my_ops.rmsnorm):
        return function(x, weight).pow(3).sum()

    def add_loss(x, weight, function=my_ops.rmsnorm):
        if function is formula:
            return loss(2 * x, weight, formula) + (2 * x).square().sum()
        y, total = my_ops.add_rmsnorm(x, x, weight)
        return y.pow(3).sum() + total.square().sum()

    for f in (loss, add_loss):
        for transform in (
            lambda f: grad(f, (0, 1)),
            lambda f: vmap(grad(f, (0, 1)), (0, None)),
            lambda f: vmap(grad(f), (1, None)),
            lambda f: grad(lambda x, w: vmap(f, (0, None))(x, w).sum(), (0, 1)),
            lambda f: grad(lambda x, w: grad(f)(x, w).square().sum(), (0, 1)),
        ):
            actual = transform(f)(x, weight)
            expected = transform(lambda x, w, f=f: f(x, w, formula))(x, weight)
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert vmap(my_ops.rmsnorm)(x[:0], x[:0, 0]).shape == x[:0].shape
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(my_ops.rmsnorm, (x,), (x,))


def test_forward_mode_raises(device):
    forward_ad, named = torch.autograd.forward_ad, torch.ops.my_ops.rmsnorm
    x = torch.randn(3, 8, device=device)
    with forward_ad.dual_level():
        torch.testing.assert_close(
            my_ops.rmsnorm(x), torch.nn.functional.rms_norm(x, (8,), eps=1e-6)
        )
        dual = forward_ad.make_dual(x, x)
        for call in (my_ops.rmsnorm, lambda x: my_ops.add_rmsnorm(x, x)):
            with pytest.raises(RuntimeError, match=r"forward AD|jvp"):
                call(dual)
        with pytest.raises(RuntimeError, match=r"my_ops\.rmsnorm: expected no forward-mode"):
            named(dual)
    with pytest.raises(RuntimeError, match=r"my_ops\.rmsnorm: expected no forward-mode"):
        torch.func.jvp(named, (x,), (x,))


def test_opcheck(device):
    ops = torch.ops.my_ops
    for dtype, check in ((torch.float32, opcheck), (torch.bfloat16, opcheck_dtype)):
        x, weight = sample((4, 6, 8), dtype, device), sample((8,), torch.float32, device)
        for view in (x, x.transpose(0, 1), sample((8, 6), dtype, device).t()):
            grad = torch.randn_like(view)
            for out_dtype, rounded in ((None, False), ("float32", True)):
                options = (1e-6, 0.0, rounded, out_dtype)
                check(ops.rmsnorm_forward.default, (view, weight, *options))
                check(ops.rmsnorm_forward.default, (view, None, *options))
                check(ops.add_rmsnorm_forward.default, (view, grad, weight, *options))
            check(ops.rmsnorm_backward.default, (grad, None, view, weight, None, 0.0))
            check(ops.rmsnorm_backward_x.default, (grad, grad, view, None, 1e-6, 0.0))
            check(ops.rmsnorm_backward_weight.default, (grad, view, weight, 1e-6, 1.0))
            differentiable = view.detach().clone().requires_grad_()
            check(ops.rmsnorm.default, (differentiable, weight.clone().requires_grad_(), 1e-6))
            check(ops.rmsnorm.default, (differentiable,))


def test_named_operator(device):
    x = sample((5, 24), torch.float32, device).requires_grad_()
    weight = sample((24,), torch.float32, device).requires_grad_()
    named = torch.ops.my_ops.rmsnorm(x, weight, 1e-6)
    assert torch.equal(named, my_ops.rmsnorm(x, weight))
    grads = torch.autograd.grad(named.square().sum(), (x, weight))
    expected = torch.autograd.grad(my_ops.rmsnorm(x, weight).square().sum(), (x, weight))
    assert all(map(torch.equal, grads, expected))


def test_raw_operators_have_derivatives(device):
    """So does an exported graph, which consists of them. Each result alone, too."""
    ops = torch.ops.my_ops
    grad, grad_sum, x, weight = (
        sample(shape, torch.float64, device).requires_grad_()
        for shape in ((2, 3), (2, 3), (2, 3), (3,))
    )
    numbers = 1e-3, 0.5
    calls = [
        (ops.rmsnorm_forward, (x, weight, *numbers, False, None)),
        (ops.add_rmsnorm_forward, (x, grad_sum, weight, *numbers, False, None)),
        (ops.rmsnorm_backward, (grad, grad_sum, x, weight, *numbers)),
        (ops.rmsnorm_backward, (grad, None, x, weight, *numbers)),
        (ops.rmsnorm_backward_x, (grad, grad_sum, x, weight, *numbers)),
        (ops.rmsnorm_backward_x, (grad, None, x, None, None, 0.0)),
        (ops.rmsnorm_backward_weight, (grad, x, weight, *numbers)),
    ]
    for op, arguments in calls:
        assert gradcheck(op, arguments) and gradgradcheck(op, arguments)
        results = op(*arguments)
        if not isinstance(results, tuple):
            continue
        for number in range(len(results)):
            assert gradcheck(lambda *args, op=op, i=number: op(*args)[i], arguments)
        factors = [torch.randn_like(result) for result in results]

        def of_all(*args, op=op, factors=factors):
            return sum((y * f).sum() for y, f in zip(op(*args), factors, strict=True))

        assert gradcheck(of_all, arguments)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break_and_with_the_same_bits(device, backend):
    """Liger#1350: the compiled kernel computed in float64 and differed from the eager one."""

    def step(x, residual, weight):
        y, total = my_ops.add_rmsnorm(x, residual, weight, weight_offset=1.0)
        z = my_ops.rmsnorm(total, weight, cast_order="hf", out_dtype=torch.float32)
        return y, z, torch.ops.my_ops.rmsnorm(total, weight, 1e-6)

    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    for rows in (3, 8, 5):
        x, residual = (sample((rows, 48), torch.bfloat16, device) for _ in range(2))
        weight = sample((48,), torch.float32, device)
        grads = [sample((rows, 48), dtype, device) for dtype in (x.dtype, torch.float32, x.dtype)]
        assert all(map(torch.equal, compiled(x, residual, weight), step(x, residual, weight)))
        inputs = [t.requires_grad_() for t in (x, residual, weight)]
        actual = torch.autograd.grad(compiled(*inputs), inputs, grads)
        expected = torch.autograd.grad(step(*inputs), inputs, grads)
        for ours, theirs in zip(actual, expected, strict=True):  # sums of gradients may be fused
            torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=1e-2)
    assert counter.frame_count <= 3  # without and with gradient; not one for every row count


def test_autocast_leaves_the_dtypes_alone(device):
    """pytorch#167308: after a linear layer under autocast, bfloat16 meets a float32 weight."""
    linear = torch.nn.Linear(32, 64, device=device)
    norm = my_ops.nn.RMSNorm(64, device=device)
    x = sample((5, 4, 32), torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        hidden = linear(x)
        y = norm(hidden)
    assert y.dtype == hidden.dtype == torch.bfloat16
    assert_accurate(y, exact(hidden, norm.weight))
    y.float().square().sum().backward()
    assert norm.weight.grad.dtype == torch.float32
