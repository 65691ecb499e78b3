"""DTensor rules of every operator: gloo on two processes of this machine, NCCL on two GPUs."""

import pytest
import torch
from helpers import assert_same_bytes, message
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from two_processes import on_both

import my_ops

pytestmark = pytest.mark.xdist_group("two processes")  # one worker starts them once
R, EXACT = Replicate(), {"rtol": 0, "atol": 0}


def distributed(tensor, mesh, placement):
    if isinstance(tensor, my_ops.FP4Tensor):
        return my_ops.distributed.distribute_fp4(tensor, mesh, [placement])
    return distribute_tensor(tensor, mesh, [placement])


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check(function, mesh, tensors, placements, result, *, gradients=None, exact=False):
    """function of tensors with these placements: its value, its gradients, where they lie.

    They are compared with those of whole tensors on one process; `exact` promises the same bits.
    """
    tensors = [t.to(mesh.device_type) for t in tensors]
    trained = [n for n, t in enumerate(tensors) if not isinstance(t, my_ops.FP4Tensor)]
    alone = [t.clone() for t in tensors]
    sharded = [distributed(t, mesh, p) for t, p in zip(tensors, placements, strict=True)]
    for n in trained:
        alone[n].requires_grad_()
        sharded[n].requires_grad_()
    expected, actual = function(*alone), function(*sharded)
    assert actual.placements == (result,), (placements, actual.placements)
    torch.testing.assert_close(whole(actual), expected, **(EXACT if exact else {}))
    expected.pow(2).sum().backward()
    whole(actual).pow(2).sum().backward()
    for n in trained:
        torch.testing.assert_close(whole(sharded[n].grad), alone[n].grad, rtol=1e-4, atol=1e-4)
    if gradients is not None:
        assert [sharded[n].grad.placements for n in trained] == [(p,) for p in gradients]


@on_both
def test_square(mesh):
    x = torch.randn(4, 6, 8)
    for p in (R, Shard(0), Shard(1), Shard(2)):
        for square in (my_ops.square, torch.ops.my_ops.square):
            check(square, mesh, [x], [p], p, gradients=[p], exact=True)
        check(lambda x: my_ops.square_(x * 1), mesh, [x], [p], p, gradients=[p], exact=True)
        frozen = distributed(x.clone().to(mesh.device_type), mesh, p)
        assert my_ops.square_(frozen) is frozen
        torch.testing.assert_close(whole(frozen).cpu(), x * x, **EXACT)
    terms = DTensor.from_local(x.to(mesh.device_type), mesh, [Partial()])
    assert message(my_ops.square_, terms).startswith(
        "my_ops.square_: x: expected a replicated or sharded DTensor, got placements (Partial"
    )


@on_both
def test_rmsnorm(mesh):
    """With sharded rows the gradient of the weight is a partial sum until somebody reads it."""

    def add(x, residual, weight):
        return torch.add(*my_ops.add_rmsnorm(x, residual, weight))

    x, weight = torch.randn(4, 6, 8), torch.randn(8)
    for p in (R, Shard(0), Shard(1), Shard(2)):
        rows = R if p == Shard(2) else p  # a row has to be whole
        summed = R if rows == R else Partial()
        for rmsnorm in (my_ops.rmsnorm, torch.ops.my_ops.rmsnorm):
            check(rmsnorm, mesh, [x], [p], rows)
            check(rmsnorm, mesh, [x, weight], [p, R], rows)
        check(add, mesh, [x, x.flip(0), weight], [p, p, R], rows, gradients=[rows, rows, summed])


@on_both
def test_matmul(mesh):
    a, b = torch.randn(4, 6, 8), torch.randn(8, 10)
    for matmul in (my_ops.matmul, lambda a, b: torch.ops.my_ops.matmul(a, b, "ieee")):
        check(matmul, mesh, [a, b], [R, R], R)
        for rows in (Shard(0), Shard(1)):
            check(matmul, mesh, [a, b], [rows, R], rows, gradients=[rows, Partial()])
        columns = [R, Shard(1)]
        check(matmul, mesh, [a, b], columns, Shard(2), gradients=[Partial(), Shard(1)])
        inner = [Shard(2), Shard(0)]
        check(matmul, mesh, [a, b], inner, Partial(), gradients=inner)


def quantized(x, mesh, placement, **options):
    return my_ops.fp4_quantize(distributed(x, mesh, placement), **options)


@on_both
def test_fp4_quantize_and_dequantize(mesh):
    """The bytes are those of the whole tensor, and so are the values."""
    x = torch.randn(2, 6, 64, device=mesh.device_type)
    x[1, 4, 50] = 100  # amax lies in one process
    for format in ("nvfp4", "mxfp4"):
        expected = my_ops.fp4_quantize(x, format)
        for p in (R, Shard(0), Shard(1), Shard(2)):
            q = quantized(x, mesh, p, format=format)
            assert q.packed.placements == q.scale_bytes.placements == (p,)
            assert_same_bytes(my_ops.distributed.gather_fp4(q), expected)
            assert q.dequantize().placements == (p,)
            assert torch.equal(whole(q.dequantize()), expected.dequantize())
            again = distributed(expected, mesh, p)
            assert_same_bytes(my_ops.distributed.gather_fp4(again), expected)
        through = lambda x: my_ops.fp4_quantize(x, format).dequantize()  # noqa: B023, E731
        check(through, mesh, [x], [Shard(1)], Shard(1), gradients=[Shard(1)], exact=True)
    weight = torch.randn(32, 64, device=mesh.device_type)
    for p in (Shard(0), Shard(1)):
        tiles = quantized(weight, mesh, p, block2d=True)
        assert tiles.packed.placements == (p,)
        expected = my_ops.fp4_quantize(weight, block2d=True)
        assert_same_bytes(my_ops.distributed.gather_fp4(tiles), expected)
    given = quantized(x, mesh, Shard(0), amax=50.0)
    assert_same_bytes(my_ops.distributed.gather_fp4(given), my_ops.fp4_quantize(x, amax=50.0))
    transposed = quantized(x[0], mesh, Shard(1), axis=0)
    assert transposed.transposed
    expected = my_ops.fp4_quantize(x[0], axis=0)
    assert torch.equal(whole(transposed.dequantize()), expected.dequantize())


@on_both
def test_fp4_quantize_gathers_with_a_warning(mesh):
    """Where bits depend on the place in the whole tensor, or a block would be split."""
    x = torch.randn(24, 48, device=mesh.device_type)
    for placement, options in (
        (Shard(1), {}),  # 24 elements each
        (Shard(0), {"rounding": "stochastic", "seed": 3}),
        (Shard(0), {"block2d": True}),  # 12 rows each, tiles of 16
    ):
        with pytest.warns(UserWarning, match="my_ops.fp4_quantize: x: expected a sharding that"):
            q = quantized(x, mesh, placement, **options)
        assert q.packed.placements == (R,)
        assert_same_bytes(my_ops.distributed.gather_fp4(q), my_ops.fp4_quantize(x, **options))


@on_both
def test_fp4_matmul_with_fp4_gradients(mesh):
    """They round stochastically, for which a sharded gradient is gathered."""

    def matmul(a, b):
        return my_ops.fp4_matmul(a, b, backward="fp4", seed=5)

    a, b = torch.randn(2, 16, 64), torch.randn(64, 32)
    with pytest.warns(UserWarning, match="my_ops.fp4_quantize: x: expected a sharding that"):
        check(matmul, mesh, [a, b], [R, Shard(1)], Shard(2))


@on_both
def test_fp4_hadamard(mesh):
    """Rows may be sharded; the groups of a row stay together."""
    x = torch.randn(6, 40).to(mesh.device_type)
    for placement, result in ((R, R), (Shard(0), Shard(0)), (Shard(1), R)):
        y = torch.ops.my_ops.fp4_hadamard(distributed(x, mesh, placement))
        assert y.placements == (result,)
        assert torch.equal(whole(y), torch.ops.my_ops.fp4_hadamard(x))


@on_both
def test_rmsnorm_fp4_quantize(mesh):
    x, weight = torch.randn(6, 64), torch.randn(64)
    x, weight = x.to(mesh.device_type), weight.to(mesh.device_type)
    expected = my_ops.rmsnorm_fp4_quantize(x, weight, two_level=False)
    for p in (R, Shard(0)):
        shards = distributed(x, mesh, p), distributed(weight, mesh, R)
        q = my_ops.rmsnorm_fp4_quantize(*shards, two_level=False)
        assert q.packed.placements == (p,)
        assert_same_bytes(my_ops.distributed.gather_fp4(q), expected)


LAYOUTS = {  # of x [..., K] and weight [N, K]: of the result; of the gradients of x and bias
    "whole": (R, R, R, (R, R)),
    "rows": (Shard(0), R, Shard(0), (Shard(0), Partial())),
    "columns": (R, Shard(0), Shard(2), (Partial(), Shard(0))),
    "inner": (Shard(2), Shard(1), Partial(), (Shard(2), R)),
}


@on_both
def test_fp4_linear(mesh):
    x, bias = torch.randn(2, 6, 64), torch.randn(66)
    for format in ("nvfp4", "mxfp4"):
        weight = my_ops.fp4_quantize(torch.randn(66, 64), format)
        for name, (x_place, w_place, result, gradients) in LAYOUTS.items():
            tensors, places = [x, weight, bias], [x_place, w_place, R]
            if name == "columns":
                places[2] = Shard(0)
            exact = name != "inner" and mesh.device_type == "cpu"
            check(
                my_ops.fp4_linear, mesh, tensors, places, result, gradients=gradients, exact=exact
            )
        odd = my_ops.fp4_quantize(torch.randn(65, 64), format)  # 33 rows and 32
        check(my_ops.fp4_linear, mesh, [x, odd], [R, Shard(0)], Shard(2), exact=exact)


@on_both
def test_fp4_linear_trains_its_weight(mesh):
    """Quantized from sharded weights in each step, straight through."""

    def linear(x, weight):
        return my_ops.fp4_linear(x, my_ops.fp4_quantize(weight))

    x, weight = torch.randn(2, 6, 64), torch.randn(10, 64)
    for x_place, w_place, result, (to_x, _) in LAYOUTS.values():
        to_w = Partial() if x_place == Shard(0) else w_place
        places = [x_place, w_place]
        check(linear, mesh, [x, weight], places, result, gradients=[to_x, to_w])


@on_both
def test_fp4_matmul(mesh):
    a, b = torch.randn(2, 6, 64), torch.randn(64, 10)
    for name, (a_place, w_place, result, (to_a, _)) in LAYOUTS.items():
        b_place = w_place if w_place == R else Shard(1 - w_place.dim)
        to_b = Partial() if name == "rows" else b_place
        places = [a_place, b_place]
        check(my_ops.fp4_matmul, mesh, [a, b], places, result, gradients=[to_a, to_b])

        packed = [
            my_ops.fp4_quantize(t.to(mesh.device_type), axis=n - 1) for n, t in ((0, a), (1, b))
        ]
        left = distributed(packed[0], mesh, a_place)
        right = distributed(packed[1].t(), mesh, w_place).t()
        product = my_ops.fp4_matmul(left, right)
        assert product.placements == (result,)
        torch.testing.assert_close(whole(product), my_ops.fp4_matmul(*packed))


@on_both
def test_messages(mesh):
    x, q = torch.randn(4, 64), my_ops.fp4_quantize(torch.randn(6, 64))
    x, q = x.to(mesh.device_type), q.to(mesh.device_type)
    rows = distributed(q, mesh, Shard(0))
    expected = "expected a DTensor on DeviceMesh("
    got = message(my_ops.fp4_linear, x, rows)
    assert got.startswith(f"my_ops.fp4_linear: x: {expected}") and got.endswith("a plain tensor")
    got = message(my_ops.fp4_linear, distributed(x, mesh, R), q)
    assert got.startswith(f"my_ops.fp4_linear: weight: {expected}")

    distribute, name = my_ops.distributed.distribute_fp4, "my_ops.distributed.distribute_fp4"
    assert message(distribute, q.t(), mesh, [R]) == (
        f"{name}: q: expected a whole FP4Tensor, not transposed, got a transposed or sharded one"
    )
    assert message(distribute, x, mesh, [R]).endswith("not transposed, got Tensor")
    short = my_ops.fp4_quantize(x[:, :48])
    assert message(distribute, short, mesh, [Shard(-1)]) == (
        f"{name}: placements: expected whole blocks of 16 elements for each of 2 processes, "
        "got Shard(1) of [4, 48]"
    )
    assert message(distribute, q, mesh, [Partial()]).startswith(
        f"{name}: placements: expected Replicate() or Shard(d), got P"
    )
    with pytest.warns(UserWarning, match="my_ops.fp4_linear: weight: .*gathered in every call"):
        y = my_ops.fp4_linear(distributed(x, mesh, Shard(0)), rows)
    torch.testing.assert_close(whole(y), my_ops.fp4_linear(x, q))
