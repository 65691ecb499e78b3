"""DTensor rules of square, rmsnorm and matmul: which placements each of them keeps."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from my_ops._errors import raise_expected
from my_ops.distributed._placements import product, product_over_rows, rows, summed

_ops = torch.ops.my_ops


def _options(*others):
    return [None] * len(others)


@register_sharding([_ops.square_forward.default, _ops.square.default])
def _square(x):
    replicated = ([Replicate()], [Replicate()])
    return [replicated, *(([Shard(d)], [Shard(d)]) for d in range(x.ndim))]


@register_sharding(_ops.square_backward.default)
def _square_backward(grad, x):
    replicated = ([Replicate()], [Replicate()] * 2)
    return [replicated, *(([Shard(d)], [Shard(d)] * 2) for d in range(x.ndim))]


def _square_inplace(cls, operator, types, args, kwargs):
    (x,) = args
    if any(p.is_partial() for p in x.placements):
        raise_expected(
            "square_", "x", "a replicated or sharded DTensor", f"placements {x.placements}"
        )
    operator(x.to_local())


# Not register_sharding, which cannot describe an operator that returns nothing.
torch.library.register_torch_dispatch("my_ops::square_inplace", DTensor, _square_inplace)


def _if_given(argument, placement):
    return None if argument is None else placement


@register_sharding([_ops.rmsnorm_forward.default, _ops.rmsnorm.default])
def _rmsnorm(x, *others):  # the named operator comes without the arguments that were left out
    weight = [_if_given(w, Replicate()) for w in others[:1]]
    return [([p], [p, *weight, *_options(*others[1:])]) for p in rows(x.ndim)]


@register_sharding(_ops.add_rmsnorm_forward.default)
def _add_rmsnorm(x, residual, weight, *others):
    w = _if_given(weight, Replicate())
    return [([p, p], [p, p, w, *_options(*others)]) for p in rows(x.ndim)]


@register_sharding(_ops.rmsnorm_backward.default)
def _rmsnorm_backward(grad, grad_sum, x, weight, *others):
    return [
        ([p, summed(p)], [p, _if_given(grad_sum, p), p, Replicate(), *_options(*others)])
        for p in rows(x.ndim)
    ]


@register_sharding(_ops.rmsnorm_backward_x.default)
def _rmsnorm_backward_x(grad, grad_sum, x, weight, *others):
    w = _if_given(weight, Replicate())
    return [([p], [p, _if_given(grad_sum, p), p, w, *_options(*others)]) for p in rows(x.ndim)]


@register_sharding(_ops.rmsnorm_backward_weight.default)
def _rmsnorm_backward_weight(grad, x, weight, *others):
    return [([summed(p)], [p, p, Replicate(), *_options(*others)]) for p in rows(x.ndim)]


def _with_precision(options):
    return [([result], [*operands, None]) for result, *operands in options]


@register_sharding([_ops.matmul_forward.default, _ops.matmul.default])
def _matmul(A, B, precision):
    return _with_precision(product(A.ndim, kept=1, contracted=0))


@register_sharding(_ops.matmul_backward_A.default)
def _matmul_backward_A(grad, B, precision):
    return _with_precision(product(grad.ndim, kept=0, contracted=1))


@register_sharding(_ops.matmul_backward_B.default)
def _matmul_backward_B(A, grad, precision):
    return _with_precision(product_over_rows(A.ndim))
