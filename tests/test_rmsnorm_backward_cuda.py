"""The CUDA kernels of rmsnorm's backward: every way in which a row can be owned, its borders and
the layouts that have kernels of their own."""

import itertools

import pytest
import torch
from rmsnorm_reference import formula, sample

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]

EPS = 1e-6
# Columns in chunks of 16 bytes: 8 lanes to 16 and 32, a warp to 64 and 128, a block to 1024, 1 to
# 16 blocks with a ring to 32768 (float32: 65536), two launches beyond. Ragged rows, with up to a
# chunk more: 4, 8, 16 and 32 lanes to 16, 32, 64 and 128, then blocks of warps of 127; float32 to
# 1016, then 8 warps of 159 to 1272, of 191 to 1528, and warps of 127 again.
CHUNKS = [1, 16, 17, 32, 33, 64, 65, 128, 129, 1016, 1017, 1023, 1024, 1025, 1272, 1273, 1528, 1529]
CHUNKS += [2048, 2049, 5000, 32768, 32769, 45000, 65536, 65537]
TOLERANCE = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-20}


def both(grad, x, weight, grad_sum=None, offset=0.0):
    return torch.ops.my_ops.rmsnorm_backward(grad, grad_sum, x, weight, EPS, offset)


def reference(grad, x, weight, grad_sum=None, offset=0.0):
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = formula(x, weight, EPS, offset)
    grad_x, grad_weight = torch.autograd.grad(y, (x, weight), grad.double())
    return grad_x if grad_sum is None else grad_x + grad_sum.double(), grad_weight


def assert_close(actual, expected, terms=1.0):
    """`terms`: the size of what is summed, where the sum itself cancels."""
    for ours, theirs in zip(actual, expected, strict=True):
        error = (ours.double() - theirs).abs().max()
        assert error <= TOLERANCE[ours.dtype] * theirs.abs().max().clamp(min=terms)


def case(rows, H, dtype, w_dtype=None):
    x, grad, more = (sample((rows, H), dtype, "cuda") for _ in range(3))
    return grad, x, sample((H,), w_dtype or dtype, "cuda"), more


@pytest.mark.parametrize("ragged", [0, 1, 3])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_values_at_the_borders(dtype, chunks, ragged):
    H = max(1, chunks * 16 // dtype.itemsize - ragged)
    grad, x, weight, more = case(5 if chunks > 1000 else 67, H, dtype)
    # At H = 1 grad_x is the difference of two terms that are equal but for eps.
    rstd = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS)
    terms = (rstd * grad * (weight.abs() + 1)).abs().max().item() if H == 1 else 1.0
    assert_close(both(grad, x, weight), reference(grad, x, weight), terms)
    expected = reference(grad, x, weight, more, 1.0)
    assert_close(both(grad, x, weight, more, 1.0), expected, terms)


@pytest.mark.parametrize("H", [256, 5120, 40_000])
def test_float32_weight(H):
    grad, x, weight, _ = case(9, H, torch.bfloat16, torch.float32)
    assert_close(both(grad, x, weight), reference(grad, x, weight))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("H", [64, 192, 256, 512, 1024, 4096, 8192, 20_480])
def test_layouts_have_the_bits_of_contiguous_tensors(dtype, H):
    grad, x, weight, more = case(24, H, dtype)
    expected = both(grad, x, weight, more)
    for name, view in {
        "misaligned": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
        "rows of odd stride": lambda t: torch.nn.functional.pad(t, (1, 0))[:, 1:],
        "slice of a packed tensor": lambda t: torch.stack([t, t], 1)[:, 1],
        "rows that do not collapse": lambda t: t.view(4, 6, H).transpose(0, 1).contiguous(),
    }.items():
        layout = (lambda t: t.transpose(0, 1)) if name.startswith("rows that") else (lambda t: t)
        actual = both(*(layout(view(t)) if t.dim() == 2 else t for t in (grad, x, weight, more)))
        assert torch.equal(actual[0].reshape(24, H), expected[0]), name
        assert torch.equal(actual[1], expected[1]), name


# Fewer columns than a chunk, one more; each number of lanes; blocks; two launches.
RAGGED = [1, 7, 9, 111, 121, 255, 505, 769, 1017, 1025, 4501, 5125, 9001, 20_001]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("H", RAGGED)
def test_ragged_rows_have_the_same_bits_wherever_they_begin(dtype, H):
    grad, x, weight, more = case(19, H, dtype)
    expected = both(grad, x, weight, more)[0]
    for shift in (1, 3, 8):
        for views in itertools.product((False, True), repeat=3):
            tensors = [
                torch.cat([t.new_zeros(shift), t.flatten()])[shift:].view(t.shape) if view else t
                for t, view in zip((grad, x, more), views, strict=True)
            ]
            assert torch.equal(both(*tensors[:2], weight, tensors[2])[0], expected)
    for row in range(1, 10):
        views = [t[row:] for t in (grad, x, more)]
        for g, values, s in (views, [t.clone() for t in views]):
            assert torch.equal(both(g, values, weight, s)[0], expected[row:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("H", [9, 111, 255, 769, 4501, 5125])
def test_ragged_rows_keep_to_themselves(dtype, H):
    """Neighbouring rows share packs: what is in one must not show in another."""
    grad, x, weight, _ = case(40, H, dtype)
    expected = both(grad, x, weight)[0][17]
    others = torch.arange(40, device="cuda") != 17
    for bad in (float("nan"), float("inf"), 0.0):
        grad[others] = bad
        x[others] = bad
        assert torch.equal(both(grad, x, weight)[0][17], expected)


@pytest.mark.parametrize("H", [111, 256, 1024, 5120, 16_384, 65_544, 131_072])
def test_only_what_is_asked_for_has_the_same_bits(H):
    ops = torch.ops.my_ops
    grad, x, weight, more = case(17, H, torch.bfloat16)
    grad_x, grad_weight = both(grad, x, weight)
    assert torch.equal(ops.rmsnorm_backward_x(grad, None, x, weight, EPS, 0.0), grad_x)
    assert torch.equal(ops.rmsnorm_backward_weight(grad, x, weight, EPS, 0.0), grad_weight)
    with_more = ops.rmsnorm_backward_x(grad, more, x, weight, EPS, 0.0)
    assert torch.equal(with_more, both(grad, x, weight, more)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("H", [111, 256, 1024, 4096, 16_384, 65_536, 262_144])
def test_rows_and_runs_are_independent(dtype, H):
    grad, x, weight, more = case(1000 if H <= 16_384 else 300, H, dtype)
    grad_x, grad_weight = both(grad, x, weight, more)
    for _ in range(3):
        again = both(grad, x, weight, more)
        assert torch.equal(again[0], grad_x)
        assert torch.equal(again[1], grad_weight)
    for rows in (slice(0, 1), slice(7, 40), slice(-3, None)):
        part = both(grad[rows], x[rows], weight, more[rows])[0]
        assert torch.equal(part, grad_x[rows])


@pytest.mark.parametrize("H", [1024, 65_536])
def test_inside_a_graph(H):
    """The second stage starts before the first has ended; a graph keeps that order too."""
    grad, x, weight, _ = case(200, H, torch.bfloat16)
    expected = both(grad, x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = both(grad, x, weight)
    for _ in range(5):
        for tensor in actual:
            tensor.zero_()
        graph.replay()
        assert all(map(torch.equal, actual, expected))
