"""What FP4Tensor and the FP4 functions must not do: lose gradients, share or mix bytes."""

import pytest
import torch
from helpers import assert_same_bytes, assert_same_tensor
from torch.nn import functional as F

import my_ops
from my_ops import fp4_quantize
from my_ops.nn import FP4Linear

FORMATS = ["nvfp4", "mxfp4"]


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: torch.func.grad(lambda z: f(z).sum())(x),
        lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(f(x)))[0],
        lambda f, x: torch.func.jacrev(f)(x),
        lambda f, x: torch.func.grad(lambda z: torch.func.vmap(f)(z).sum())(x[None]),
        lambda f, x: torch.func.vmap(torch.func.grad(lambda z: f(z).sum()))(x[None]),
    ],
    ids=["grad", "vjp", "jacrev", "grad of vmap", "vmap of grad"],
)
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_compiled_functional_derivatives_of_products(device, derivative, fullgraph):
    """Right, outside of the graph, or refused; they were zeros."""
    a, b = torch.randn(3, 32, device=device), torch.randn(32, 5, device=device)
    q = fp4_quantize(torch.randn(5, 32, device=device))
    for f, x in (
        (lambda z: my_ops.fp4_matmul(z, b), a),
        (lambda z: my_ops.fp4_matmul(a, z), b),
        (lambda z: my_ops.fp4_linear(z, q), a),
    ):
        expected = derivative(f, x)
        compiled = torch.compile(
            lambda x, f=f: derivative(f, x), backend="aot_eager", fullgraph=fullgraph
        )
        try:
            actual = compiled(x)
        except Exception:
            continue
        torch.testing.assert_close(actual, expected)


def test_amax_with_a_tangent_is_refused(device):
    x = torch.randn(2, 16, device=device)
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        amax = forward_ad.make_dual(torch.ones((), device=device), torch.ones((), device=device))
        with pytest.raises(RuntimeError, match="fp4_quantize: amax: expected a tensor without a"):
            fp4_quantize(x, amax=amax)
        assert fp4_quantize(x, amax=torch.ones((), device=device)).amax == 1


def test_a_given_amax_is_copied(device):
    x = torch.randn(2, 16, device=device)
    for shape in ((), (1,), (1, 1)):
        amax = torch.full(shape, 3.0, device=device)
        q = fp4_quantize(x, amax=amax)
        assert q.amax.shape == ()
        amax.mul_(2)
        assert q.amax == 3


@pytest.mark.parametrize(
    "rows",
    [
        lambda q: q[0:2],
        lambda q: q[1:][:2],
        lambda q: q.narrow(0, 1, 2),
        lambda q: q[1:3].narrow(0, 0, 2),  # all rows of a view of some
        lambda q: q[:2][:],
        lambda q: q.t()[:, :2].t(),
    ],
)
def test_rows_written_with_another_amax_would_change_the_others(device, rows):
    q, other = (fp4_quantize(torch.randn(4, 48, device=device) * s) for s in (1, 100))
    before = q.dequantize()
    for write in (
        lambda: rows(q).copy_(other[:2]),
        lambda: rows(q).__setitem__(slice(None), other[:2]),
        lambda: q[0].copy_(other[0]),
        lambda: q.unbind()[0].copy_(other[0]),
    ):
        with pytest.raises(RuntimeError, match="copy_: expected the amax of the tensor"):
            write()
    assert torch.equal(q.dequantize(), before)


@pytest.mark.parametrize("options", [{"format": "mxfp4"}, {"two_level": False}])
def test_rows_without_an_amax_are_written(device, options):
    q, other = (fp4_quantize(torch.randn(4, 48, device=device) * s, **options) for s in (1, 100))
    expected = torch.cat([other[2:].dequantize(), q[2:].dequantize()])
    q[:2] = other[2:]
    assert torch.equal(q.dequantize(), expected)


def test_rows_with_the_same_amax_are_written(device):
    q, other = (fp4_quantize(torch.randn(4, 48, device=device) * s) for s in (1, 100))
    q[:2] = q[2:]
    assert torch.equal(q[:2].dequantize(), q[2:].dequantize())
    q[:] = other  # all rows: the amax too
    assert_same_tensor(q, other)
    if device == "cpu":  # comparing values on CUDA would synchronize
        q[1:2] = fp4_quantize(torch.ones(1, 48), amax=q.amax)
        assert q[1].dequantize().eq(q[1].dequantize()[0]).all()
        assert torch.equal(q[2:].dequantize(), other[2:].dequantize())


def test_copied_rows_own_their_amax(device):
    q, other = (fp4_quantize(torch.randn(4, 48, device=device) * s) for s in (1, 100))
    before, index = q.dequantize(), torch.tensor([0, 1], device=device)
    for copied in (q[index], q.index_select(0, index), q[:2].clone(), q[:2].half()):
        copied.copy_(other[:2])
        assert torch.equal(q.dequantize(), before)
        assert torch.equal(copied.dequantize(torch.float32), other[:2].dequantize())


@pytest.mark.parametrize(
    "view", [lambda w: w, lambda w: w[1:3], lambda w: w.t().t(), lambda w: w.detach()]
)
@pytest.mark.parametrize("format", FORMATS)
def test_a_weight_written_before_backward_is_noticed(device, view, format):
    w, other = (fp4_quantize(torch.randn(5, 32, device=device), format) for _ in range(2))
    x = torch.randn(3, 32, device=device, requires_grad=True)
    for product in (
        my_ops.fp4_linear,
        F.linear,
        lambda x, w: my_ops.fp4_matmul(x, w.t(), format),
    ):
        y = product(x, view(w))
        w.copy_(other)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_loaded_state_before_backward_is_noticed(device):
    layer, other = (FP4Linear(32, 5, device=device) for _ in range(2))
    y = layer(torch.randn(3, 32, device=device, requires_grad=True))
    layer.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("K", [1, 40])
@pytest.mark.parametrize("format", FORMATS)
def test_mask_of_elements(device, K, format):
    q = fp4_quantize(torch.randn(5, K, device=device), format)
    y = q.dequantize()
    assert torch.equal(q[y > 0], y[y > 0])


def test_gradient_of_a_float32_weight_is_summed_in_float32(device):
    x = torch.ones(70000, 16, dtype=torch.float16, device=device)
    w = torch.randn(2, 16, requires_grad=True, device=device)
    my_ops.fp4_linear(x, fp4_quantize(w)).float().sum().backward()
    assert w.grad.eq(70000).all()


def test_an_assignment_to_data_is_refused(device):
    """torch's own setter would leave the bytes as they are, in silence."""
    q, other = (fp4_quantize(torch.randn(4, 48, device=device)) for _ in range(2))
    for weight in (q, torch.nn.Parameter(q, requires_grad=False)):
        assert_same_bytes(weight.data, q)
        assert not weight.data.requires_grad
        for value in (other, other.dequantize()):
            with pytest.raises(RuntimeError, match="FP4Tensor: data: expected copy_"):
                weight.data = value


@pytest.mark.parametrize("M", [3, 40])
@pytest.mark.parametrize("format", FORMATS)
def test_products_of_rows_that_lie_apart(device, format, M):
    """Every second row, of a matrix and of a batch of them; large enough for each kernel."""
    w = fp4_quantize(torch.randn(2060, 1024, device=device), format)
    x = torch.randn(M, 1024, dtype=torch.bfloat16, device=device)
    apart, dense = w[::2], fp4_quantize(w.dequantize()[::2].contiguous(), format, amax=w.amax)
    assert torch.equal(apart.packed, dense.packed)
    assert torch.equal(my_ops.fp4_linear(x, apart), my_ops.fp4_linear(x, dense))
    batch = fp4_quantize(torch.randn(2, 5, 1024, device=device), format)[:, ::2]
    y = my_ops.fp4_matmul(batch, apart.t(), format)
    expected = batch.dequantize().double() @ apart.dequantize().double().t()
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("factors", [{"beta": 0.5}, {"alpha": 2}, {"beta": 0, "alpha": -1}])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (1, 5)])
def test_addmm_with_factors(device, shape, factors):
    """Only the plain sum has a kernel of its own: it must not take these."""
    q, x = fp4_quantize(torch.randn(5, 48, device=device)), torch.randn(3, 48, device=device)
    bias = torch.randn(shape, device=device)
    expected = torch.addmm(bias, x, q.dequantize().t(), **factors)
    torch.testing.assert_close(torch.addmm(bias, x, q.t(), **factors), expected)
