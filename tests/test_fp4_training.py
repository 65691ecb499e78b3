"""fp4_matmul(backward="fp4") and nn.FP4Linear(trainable=True): gradients by FP4 products."""

import copy
import math

import pytest
import torch
from fp4_reference import DTYPES, FORMATS, values
from helpers import assert_same_bytes, check_gradients_in_graph, message
from torch._dynamo.utils import counters
from torch.library import opcheck
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import my_ops
from my_ops import fp4_matmul, fp4_quantize
from my_ops.nn import FP4Linear
from my_ops.ops._fp4_training import hadamard


def gradients(a, b, grad, *args, **options):
    """Those of fp4_matmul(..., backward="fp4")."""
    a, b = (x.detach().requires_grad_() for x in (a, b))
    y = fp4_matmul(a, b, *args, backward="fp4", **options)
    return torch.autograd.grad(y, (a, b), grad)


def stochastic(grad, format, seed):
    mode = "rceil" if format == "mxfp4" else "floor"
    return fp4_quantize(grad, format, scale_mode=mode, rounding="stochastic", seed=seed)


def decibels(actual, expected):
    """The ratio of signal to noise."""
    return 10 * math.log10(expected.pow(2).sum() / (actual - expected).pow(2).sum())


# ---- Which products they are ----


def assert_same_product(actual, expected):
    """Bit for bit; on the CPU torch's products depend on the layout of their operands."""
    if actual.is_cuda:
        assert torch.equal(actual, expected)
    else:
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rht", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("leading", "K", "N"), [((33,), 50, 27), ((2, 3, 8), 32, 64), ((), 16, 5)])
def test_gradients_are_products_of_operands_along_their_sum(
    device, leading, K, N, format, rht, dtype
):
    a = torch.randn(*leading, K, dtype=dtype, device=device)
    b, grad = torch.randn(K, N, device=device), torch.randn(*leading, N, device=device).to(dtype)
    grad_a, grad_b = gradients(a, b, grad, format, seed=7, rht=rht)
    assert grad_a.dtype == dtype
    assert grad_b.dtype == torch.float32

    tiles = {"block2d": True} if format == "nvfp4" else {}
    right = fp4_quantize(b, format, **tiles)  # in blocks along N
    left = stochastic(grad, format, 7)
    assert_same_product(grad_a, fp4_matmul(left, right.t(), format, out_dtype=dtype))

    columns_a, columns_grad = (x.reshape(-1, x.shape[-1]).t() for x in (a, grad))
    if rht:
        columns_a, columns_grad = hadamard(columns_a), hadamard(columns_grad)
    left, right = fp4_quantize(columns_a, format), stochastic(columns_grad, format, ~7)
    assert_same_product(grad_b, fp4_matmul(left, right.t(), format, out_dtype=torch.float32))


def test_tiles_give_the_weight_the_same_codes_in_both_products(device):
    """What the gradient of a multiplies by is what forward did: the dense gradient tells."""
    b, ones = torch.randn(48, 32, device=device), torch.eye(32, device=device)
    a = torch.zeros(32, 48, device=device)
    y = fp4_matmul(torch.eye(48, device=device), b, backward="fp4")
    grad_a, _ = gradients(a, b, ones, seed=0)
    torch.testing.assert_close(grad_a, y.t(), rtol=1e-6, atol=0)
    grad_a, _ = gradients(a, b, ones, seed=0, block2d=False)
    assert not torch.allclose(grad_a, y.t(), rtol=1e-3)


@pytest.mark.parametrize("options", [{}, {"backward": "fp4"}])
def test_forward_scales_the_weight_in_tiles_where_it_is_told_to(device, options):
    a, b = torch.randn(9, 40, device=device), torch.randn(40, 33, device=device)
    tiles, rows = (fp4_quantize(b, axis=0, block2d=block2d) for block2d in (True, False))
    by_default = tiles if options else rows
    assert torch.equal(fp4_matmul(a, b, **options), fp4_matmul(a, by_default))
    assert torch.equal(fp4_matmul(a, b, block2d=True, **options), fp4_matmul(a, tiles))
    assert torch.equal(fp4_matmul(a, b, block2d=False, **options), fp4_matmul(a, rows))


@pytest.mark.parametrize("format", FORMATS)
def test_quantized_operands_are_decoded_for_the_gradients(device, format):
    tiles = {"block2d": True} if format == "nvfp4" else {}
    a, b = torch.randn(33, 48, device=device), torch.randn(48, 32, device=device)
    grad = torch.randn(33, 32, device=device)
    qa, qb = fp4_quantize(a, format), fp4_quantize(b, format, axis=0, **tiles)
    grad_a, grad_b = gradients(qa, qb, grad, format, seed=3)
    grad_of_a, _ = gradients(a, b, grad, format, seed=3)
    if format == "nvfp4":  # tiles have the same codes again
        assert torch.equal(grad_a, grad_of_a)
    assert decibels(grad_a, grad_of_a) > 12
    right = stochastic(grad.t(), format, ~3).t()
    left = fp4_quantize(qa.dequantize().t(), format, **({"amax": qa.amax} if tiles else {}))
    assert torch.equal(grad_b, fp4_matmul(left, right, format))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), [(0, 32, 4), (4, 32, 0), (5, 0, 7), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("rht", [False, True])
def test_empty_and_small(device, format, M, K, N, rht):
    a, b = torch.randn(M, K, device=device), torch.randn(K, N, device=device)
    grad_a, grad_b = gradients(a, b, torch.ones(M, N, device=device), format, rht=rht)
    assert (grad_a.shape, grad_b.shape) == (a.shape, b.shape)
    if a.numel() * N != 1:
        assert (grad_a == 0).all()
        assert (grad_b == 0).all()


def test_gradients_of_any_layout(device):
    a, b = torch.randn(34, 40, device=device), torch.randn(40, 48, device=device)
    for grad in (
        torch.ones((), device=device).expand(34, 48),
        torch.randn(48, 34, device=device).t(),
        torch.randn(34, 96, device=device)[:, ::2],
    ):
        for rht in (False, True):
            actual = gradients(a, b, grad, seed=1, rht=rht)
            expected = gradients(a, b, grad.contiguous(), seed=1, rht=rht)
            torch.testing.assert_close(actual, expected)


def test_only_the_asked_for_gradient_is_prepared_and_computed(device):
    grads = {}
    for needs_a, needs_b in ((True, False), (False, True), (True, True)):
        a = torch.randn(8, 32, device=device, requires_grad=needs_a)
        b = torch.randn(32, 16, device=device, requires_grad=needs_b)
        with torch.profiler.profile() as profile:
            y = fp4_matmul(a, b, backward="fp4", seed=0)
            torch.autograd.grad(y.sum(), [x for x in (a, b) if x.requires_grad])
        calls = {event.key: event.count for event in profile.key_averages()}
        names = "quantize_two_level", "quantize", "quantize_stochastic", "matmul_forward"
        grads[needs_a, needs_b] = tuple(calls[f"my_ops::fp4_{name}"] for name in names)
    # a and b for the product; a again for the gradient of b; grad once for each gradient, where the
    # stochastic operator calls the other one.
    assert grads == {
        (True, False): (2, 1, 1, 2),
        (False, True): (2, 2, 1, 2),
        (True, True): (2, 3, 2, 3),
    }


# ---- The Hadamard transform ----


def test_hadamard_by_hand(device):
    """Vectors of notes/fp4.md 1.9."""
    unit = 16 * torch.eye(16, device=device)
    expected = torch.ones(3, 16)
    expected[0], expected[1] = 4, torch.tensor([-4.0, 4, 4, -4] * 4)
    expected[2] = torch.tensor([-1.0, 0, 1, 0, 1, 0, -1, 0, 1, 2, 1, 0, 1, 0, 1, -2])
    x = torch.stack((unit[0], unit[3], torch.ones(16, device=device)))
    assert torch.equal(hadamard(x).cpu(), expected)


@pytest.mark.parametrize("K", [0, 1, 16, 40, 160])
def test_hadamard_cancels_in_a_product(device, K):
    a, b = torch.randn(5, K, device=device), torch.randn(7, K, device=device).t().contiguous().t()
    left, right = hadamard(a), hadamard(b)
    assert left.shape == (5, -(-K // 16) * 16)
    exact = a.double() @ b.double().t()
    torch.testing.assert_close(left.double() @ right.double().t(), exact, rtol=1e-6, atol=1e-5)
    if K:
        assert not torch.allclose(left[:, :K], a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hadamard_of_any_layout(device, dtype):
    """The same bits for the same rows, on both devices; float32 throughout."""
    x = torch.randn(3, 50, 37, device=device).to(dtype)
    expected = hadamard(x.cpu())
    assert expected.shape == (3, 50, 48)
    assert expected.dtype == torch.float32
    for view in (x, x.mT.contiguous().mT, torch.cat((x, x), -1)[..., :37]):
        assert torch.equal(hadamard(view).cpu(), expected)
        for i in range(3):
            assert torch.equal(hadamard(view[i]).cpu(), expected[i])
    assert torch.equal(hadamard(x[0, 0]).cpu(), expected[0, 0])
    assert torch.equal(hadamard(x[:1].expand(3, 50, 37)).cpu(), expected[:1].expand(3, 50, 48))


@pytest.mark.parametrize("dtype", DTYPES)
def test_hadamard_of_the_largest_numbers_is_finite(device, dtype):
    x = torch.full((2, 16), 60000.0, device=device).to(dtype)
    assert hadamard(x).isfinite().all()


def test_mxfp4_loses_less_to_outliers_when_transformed(device):
    """One element in a hundred is 20 times as large: 3 dB more of the gradient of b survive."""
    a, grad = (torch.randn(2048, n, device=device) for n in (64, 48))
    for x in (a, grad):
        x[torch.rand_like(x) < 0.01] *= 20
    b = torch.randn(64, 48, device=device)
    exact = a.double().t() @ grad.double()
    plain, transformed = (
        decibels(gradients(a, b, grad, "mxfp4", rht=rht, seed=0)[1].double(), exact)
        for rht in (False, True)
    )
    assert transformed > plain + 3


# ---- The rounding of the gradient ----


@pytest.mark.parametrize("of", ["a", "b", "b, transformed"])
@pytest.mark.parametrize("format", FORMATS)
def test_gradients_have_the_right_mean(device, format, of):
    """Over n seeds the mean is the exact product, by z = (mean - exact) / (deviation / sqrt(n)).

    z of each element is N(0, 1) but for the bias of 1/512 of a step: no element of these 1024 is
    past 5, and the mean of z^2 is 1 within 25 % (its own deviation is about 5 %). Rounding to the
    nearest is far outside. Nothing is cut off: the largest of each NVFP4 block is a 6, and MXFP4's
    scales leave room for the 7.
    """
    a, b = (torch.randn(32, 32, device=device) for _ in range(2))
    rounded = torch.rand(32, 32, device=device) * 12 - 6
    i = torch.arange(32, device=device)
    rounded[(i[:, None] + i) % 16 == 0] = 6 if format == "nvfp4" else 7
    rht = of == "b, transformed"
    transform = hadamard(torch.eye(16, device=device))
    grad = (rounded.unflatten(1, (2, 16)) @ transform.t()).flatten(1).t() if rht else rounded
    index = 0 if of == "a" else 1
    samples = [gradients(a, b, grad, format, rht=rht, seed=s)[index].double() for s in range(256)]
    samples = torch.stack(samples)

    def product(grad):
        if of == "a":
            tiles = {"block2d": True} if format == "nvfp4" else {}
            return grad.double() @ values(fp4_quantize(b, format, **tiles)).t()
        columns = hadamard(a.t()) if rht else a.t()
        return values(fp4_quantize(columns, format)) @ grad.double()

    exact = rounded.t() if rht else rounded
    nearest = fp4_quantize(exact, format, axis=-1 if of == "a" else 0).dequantize()
    deviation = samples.std(0) / len(samples) ** 0.5
    z = (samples.mean(0) - product(exact)) / deviation
    assert z.abs().max() < 5
    assert 0.75 < z.pow(2).mean() < 1.25
    assert ((product(nearest) - product(exact)) / deviation).pow(2).mean() > 20


def test_elements_that_are_cut_off_are_what_a_mean_lacks(device):
    """NVFP4's block scale rounds to the nearest: its largest element may pass 6 by 1/16."""
    grad = torch.full((1, 16), 6 * 17 / 16, device=device)  # the scale is a tie and goes to 1
    q = fp4_quantize(grad, two_level=False, rounding="stochastic", seed=0)
    assert torch.equal(q.dequantize(), torch.full_like(grad, 6))


# ---- The seed ----


def test_seeds(device):
    a, b = torch.randn(32, 32, device=device), torch.randn(32, 32, device=device)
    grad = torch.randn(32, 32, device=device)
    first, again = (gradients(a, b, grad, seed=5) for _ in range(2))
    assert all(map(torch.equal, first, again))
    assert all(map(torch.equal, first, gradients(a, b, grad, seed=torch.tensor(5))))
    assert all(
        map(torch.equal, gradients(a, b, grad, seed=2**64 - 1), gradients(a, b, grad, seed=-1))
    )
    assert not any(map(torch.equal, first, gradients(a, b, grad, seed=6)))
    generator = torch.get_rng_state()
    gradients(a, b, grad, seed=5)
    assert torch.equal(torch.get_rng_state(), generator)

    torch.manual_seed(1)
    drawn, next_drawn = (gradients(a, b, grad) for _ in range(2))
    torch.manual_seed(1)
    assert all(map(torch.equal, drawn, gradients(a, b, grad)))
    assert not any(map(torch.equal, drawn, next_drawn))
    # A call without gradients takes its number, too: recomputed, the next finds the same generator.
    torch.manual_seed(1)
    fp4_matmul(a, b, backward="fp4")
    assert all(map(torch.equal, next_drawn, gradients(a, b, grad)))


def test_a_seed_that_counts_on_is_read_when_it_is_given(device):
    a = torch.randn(16, 32, device=device, requires_grad=True)
    b, grad = torch.randn(32, 16, device=device), torch.randn(16, 16, device=device)
    seed = torch.tensor([5])
    y = fp4_matmul(a, b, backward="fp4", seed=seed)
    seed += 1
    assert torch.equal(torch.autograd.grad(y, a, grad)[0], gradients(a, b, grad, seed=5)[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_repeats_the_bits(device, reentrant):
    layers = torch.nn.ModuleList(
        FP4Linear(32, 32, trainable=True, backward="fp4", rht=True, device=device) for _ in range(3)
    )
    x = torch.randn(40, 32, device=device, requires_grad=True)

    def block(x, layer):
        return F.dropout(torch.tanh(layer(x)), 0.3)

    results = []
    for recompute in (False, True):
        torch.manual_seed(4)
        y = x
        for layer in layers:
            y = (
                checkpoint(block, y, layer, use_reentrant=reentrant)
                if recompute
                else block(y, layer)
            )
        # Not torch.autograd.grad, which does not reach into a reentrant checkpoint.
        y.pow(2).sum().backward()
        leaves = x, *layers.parameters()
        results.append([leaf.grad for leaf in leaves])
        for leaf in leaves:
            leaf.grad = None
    assert all(map(torch.equal, *results))


# ---- What is saved ----


def held_bytes(function):
    """What backward keeps of a call, by storages."""
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function()
    return sum(saved.values())


@pytest.mark.parametrize("options", [{}, {"backward": "fp4"}, {"backward": "fp4", "rht": True}])
@pytest.mark.parametrize("format", FORMATS)
def test_held_between_forward_and_backward(device, format, options):
    """At most 0.30 of the bfloat16 operands; an operand whose partner is frozen not at all."""
    a = torch.randn(256, 512, dtype=torch.bfloat16, device=device, requires_grad=True)
    b = torch.randn(512, 128, dtype=torch.bfloat16, device=device, requires_grad=True)
    both = held_bytes(lambda: fp4_matmul(a, b, format, **options))
    assert 0.25 * (a.nbytes + b.nbytes) < both <= 0.30 * (a.nbytes + b.nbytes)
    only_b = held_bytes(lambda: fp4_matmul(a, b.detach(), format, **options))
    assert 0.25 * b.nbytes < only_b <= 0.30 * b.nbytes
    only_a = held_bytes(lambda: fp4_matmul(a.detach(), b, format, **options))
    assert 0.25 * a.nbytes < only_a <= 0.30 * a.nbytes

    layer = FP4Linear(512, 128, format=format, trainable=True, device=device, **options)
    layer.bfloat16()
    parameters = sum(p.nbytes for p in layer.parameters())
    assert held_bytes(lambda: layer(a)) <= 0.30 * (a.nbytes + parameters)


# ---- Transforms and graphs ----


def test_second_derivative_is_refused(device):
    a, b = (torch.randn(16, 16, device=device, requires_grad=True) for _ in range(2))
    y = fp4_matmul(a, b, backward="fp4")
    (grad_a,) = torch.autograd.grad(y.sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="its gradients cannot be differentiated again"):
        (grad_a.pow(2).sum() + b.sum()).backward()


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("rht", [False, True])
def test_functional_transforms(device, rht):
    a, b = torch.randn(3, 16, 32, device=device), torch.randn(32, 5, device=device)
    options = {"backward": "fp4", "seed": 0, "rht": rht}
    scalar = lambda x: fp4_matmul(x, b, **options).pow(2).sum()  # noqa: E731
    leaves = [x.clone().requires_grad_() for x in a]
    expected = torch.stack([torch.autograd.grad(scalar(x), x)[0] for x in leaves])
    torch.testing.assert_close(torch.func.grad(scalar)(a[0]), expected[0])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(scalar))(a), expected)
    with pytest.raises(RuntimeError, match="randomness"):  # as for dropout: torch wants to be told
        torch.func.vmap(lambda x: fp4_matmul(x, b, backward="fp4"))(a)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break(device, backend):
    def step(a, b, seed):
        y = fp4_matmul(torch.tanh(a), b, backward="fp4", rht=True, seed=seed)
        return y.pow(2).sum()

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    before = counters["stats"]["unique_graphs"]
    b = torch.randn(48, 6, device=device, requires_grad=True)
    for rows in (17, 40, 66):
        a = torch.randn(rows, 48, device=device, requires_grad=True)
        expected = torch.autograd.grad(step(a, b, rows), (a, b))
        torch.testing.assert_close(torch.autograd.grad(compiled(a, b, rows), (a, b)), expected)
    # Another seed is no reason to compile again.
    assert counters["stats"]["unique_graphs"] == before + 1


@pytest.mark.parametrize("format", FORMATS)
def test_opcheck(device, format):
    x = torch.randn(3, 5, 37, device=device)
    amax = torch.ones((), device=device) if format == "nvfp4" else None
    op = torch.ops.my_ops.fp4_quantize_stochastic.default
    for view in (x, x.mT, x[0, 0], x.bfloat16(), x[:0]):
        opcheck(op, (view, amax, format, torch.tensor(3)))
        opcheck(torch.ops.my_ops.fp4_hadamard.default, (view,))


@pytest.mark.cuda
@pytest.mark.parametrize("rht", [False, True])
def test_no_synchronization_and_graph_capture(rht):
    a, b = (torch.randn(64, 64, device="cuda", requires_grad=True) for _ in range(2))

    def step():
        y = fp4_matmul(a, b, backward="fp4", rht=rht, seed=3)
        return torch.autograd.grad(y.pow(2).sum(), (a, b))

    check_gradients_in_graph(step, a)


# ---- The module ----


@pytest.mark.parametrize("options", [{}, {"block2d": True}, {"backward": "fp4", "rht": True}])
def test_module_multiplies_as_the_function(device, options):
    linear = torch.nn.Linear(40, 24, device=device)
    layer = FP4Linear.from_linear(linear.eval(), trainable=True, **options)
    assert not layer.training
    assert layer.weight is linear.weight
    assert layer.bias is linear.bias
    x = torch.randn(3, 5, 40, device=device, requires_grad=True)
    results = []
    for call in (layer, lambda x: fp4_matmul(x, linear.weight.t(), **options) + linear.bias):
        torch.manual_seed(1)
        y = call(x)
        results.append((y, *torch.autograd.grad(y.pow(2).sum(), (x, linear.weight, linear.bias))))
    assert all(map(torch.equal, *results))
    assert "trainable=True" in repr(layer)
    without_bias = FP4Linear(40, 24, bias=False, trainable=True, device=device)
    assert without_bias(x).shape == (3, 5, 24)
    assert without_bias(x[0, 0]).shape == (24,)


@pytest.mark.parametrize("options", [{}, {"backward": "fp4"}])
@pytest.mark.parametrize("format", FORMATS)
def test_module_freezes_into_what_it_multiplied_by(device, format, options):
    layer = FP4Linear(40, 24, format=format, trainable=True, device=device, **options)
    tiles = {"block2d": True} if options and format == "nvfp4" else {}
    expected = fp4_quantize(layer.weight.detach(), format, **tiles)
    frozen = copy.deepcopy(layer).freeze()
    assert_same_bytes(frozen.weight, expected)
    assert not frozen.weight.requires_grad
    assert frozen.freeze() is frozen
    x = torch.randn(5, 40, device=device)
    assert torch.equal(frozen(x), my_ops.fp4_linear(x, expected, layer.bias))
    assert type(layer.weight) is torch.nn.Parameter  # the copy is what was frozen
    assert "trainable" not in repr(frozen)


@pytest.mark.parametrize("format", FORMATS)
def test_module_state(device, format):
    layer, other = (FP4Linear(40, 24, format=format, trainable=True, device=device) for _ in "ab")
    assert {name: type(v) for name, v in layer.state_dict().items()} == {
        "weight": torch.Tensor,
        "bias": torch.Tensor,
    }
    x = torch.randn(5, 40, device=device)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    frozen = FP4Linear(40, 24, format=format, device=device)
    frozen.load_state_dict(layer.state_dict())
    assert_same_bytes(frozen.weight, copy.deepcopy(layer).freeze().weight)
    other.load_state_dict(frozen.state_dict())  # training goes on from the packed weight
    assert torch.equal(other.weight, frozen.weight.dequantize())
    assert other.weight.requires_grad
    with torch.device("meta"):
        other = FP4Linear(40, 24, format=format, trainable=True)
    other.load_state_dict(frozen.state_dict(), assign=True)
    assert type(other.weight) is torch.nn.Parameter
    assert torch.equal(other.weight, frozen.weight.dequantize())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_module_compiles(device, backend):
    layer = FP4Linear(48, 6, trainable=True, backward="fp4", device=device)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    x = torch.randn(20, 48, device=device, requires_grad=True)
    torch.testing.assert_close(compiled(x), layer(x))
    torch.manual_seed(1)
    first = torch.autograd.grad(compiled(x).pow(2).sum(), (x, *layer.parameters()))
    torch.manual_seed(1)
    again = torch.autograd.grad(compiled(x).pow(2).sum(), (x, *layer.parameters()))
    assert all(map(torch.equal, first, again))
    exact = FP4Linear.from_linear(
        torch.nn.utils.skip_init(torch.nn.Linear, 48, 6, device=device), trainable=True
    )
    exact.load_state_dict(layer.state_dict())
    expected = torch.autograd.grad(exact(x).pow(2).sum(), (x, *exact.parameters()))
    assert all(decibels(*pair) > 8 for pair in zip(first, expected, strict=True))


@pytest.mark.parametrize("options", [{}, {"backward": "fp4", "rht": True}])
@pytest.mark.parametrize("format", FORMATS)
def test_a_small_network_learns(device, format, options):
    """Within a tenth of what float32 reaches on the same data; nothing learned is 1."""
    x = torch.randn(256, 32, device=device)
    target = torch.sin(x @ torch.randn(32, 8, device=device) / 4)
    target /= target.std()

    def trained_loss(convert):
        torch.manual_seed(1)
        first, last = torch.nn.Linear(32, 64, device=device), torch.nn.Linear(64, 8, device=device)
        network = torch.nn.Sequential(convert(first), torch.nn.Tanh(), convert(last))
        optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
        for _ in range(100):
            optimizer.zero_grad()
            loss = F.mse_loss(network(x), target)
            loss.backward()
            optimizer.step()
        return loss.item()

    fp4 = trained_loss(
        lambda linear: FP4Linear.from_linear(linear, format, trainable=True, **options)
    )
    dense = trained_loss(lambda linear: linear)
    assert dense < 0.3
    assert fp4 < dense + 0.1


def test_module_under_autocast(device):
    layer = FP4Linear(32, 16, trainable=True, device=device)
    x = torch.randn(4, 32, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert layer.weight.grad.dtype == x.grad.dtype == torch.float32


# ---- Errors ----


def test_errors(device):
    a, b = torch.ones(4, 32, device=device), torch.ones(32, 3, device=device)
    for options, expected in (
        ({"backward": "fp8"}, "backward: expected 'exact' or 'fp4', got 'fp8'"),
        ({"rht": True}, "rht: expected False with backward='exact', got True"),
        ({"seed": 1}, "seed: expected None with backward='exact', got 1"),
        ({"out_dtype": torch.float64}, "out_dtype: expected float32, float16 or bfloat16, got "),
        ({"format": "mxfp4", "block2d": True}, "block2d: expected False, but for 'nvfp4', got "),
        ({"backward": "fp4", "seed": 2**64}, "seed: expected an integer from -2**63 below 2**64, "),
        ({"backward": "fp4", "seed": 0.5}, "seed: expected an integer from -2**63 below 2**64, "),
        (
            {"backward": "fp4", "seed": torch.ones(2)},
            "seed: expected an integer or one int64 element on the CPU, got 2 of torch.float32 on",
        ),
    ):
        assert message(fp4_matmul, a, b, **options).startswith(f"my_ops.fp4_matmul: {expected}")
    op = "my_ops.nn.FP4Linear"
    for options, expected in (
        ({"backward": "fp4"}, "backward: expected 'exact' without trainable=True, got 'fp4'"),
        ({"trainable": True, "rht": True}, "rht: expected False with backward='exact', got True"),
    ):
        assert message(FP4Linear, 32, 3, **options) == f"{op}: {expected}"
        linear = torch.nn.Linear(32, 3)
        assert message(FP4Linear.from_linear, linear, **options) == f"{op}.from_linear: {expected}"
