"""DTensor sharding rules of the operators: import my_ops.distributed before they meet a DTensor.

A rule lists which placements of the arguments give which placement of the result without
communication; DTensor redistributes what fits none of them. Along one dimension of the mesh:

    square          any sharding of x
    rmsnorm         rows sharded, the weight replicated; its gradient is a partial sum
    matmul          rows of a sharded; or columns of b; or the contracted dimension, a partial sum

The gradients have the rules of their formulas. FP4 operators have none: an FP4 weight stays whole
on each process (FSDP2: `ignored_params`; DDP: `init_sync=False`).
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

_ops = torch.ops.my_ops


def _options(*others):
    return [None] * len(others)


@register_sharding(_ops.square_forward.default)
def _square(x):
    replicated = ([Replicate()], [Replicate()])
    return [replicated, *(([Shard(d)], [Shard(d)]) for d in range(x.ndim))]


@register_sharding(_ops.square_backward.default)
def _square_backward(grad, x):
    replicated = ([Replicate()], [Replicate()] * 2)
    return [replicated, *(([Shard(d)], [Shard(d)] * 2) for d in range(x.ndim))]


def _rows(ndim):
    """Replicated, or sharded in one of the dimensions that count rows."""
    return [Replicate(), *(Shard(d) for d in range(ndim - 1))]


def _if_given(argument, placement):
    return None if argument is None else placement


@register_sharding(_ops.rmsnorm_forward.default)
def _rmsnorm(x, weight, *others):
    w = _if_given(weight, Replicate())
    return [([p], [p, w, *_options(*others)]) for p in _rows(x.ndim)]


@register_sharding(_ops.add_rmsnorm_forward.default)
def _add_rmsnorm(x, residual, weight, *others):
    w = _if_given(weight, Replicate())
    return [([p, p], [p, p, w, *_options(*others)]) for p in _rows(x.ndim)]


def _summed(placement):
    """What a sum over rows is where the rows have this placement."""
    return Replicate() if placement.is_replicate() else Partial()


@register_sharding(_ops.rmsnorm_backward.default)
def _rmsnorm_backward(grad, grad_sum, x, weight, *others):
    return [
        ([p, _summed(p)], [p, _if_given(grad_sum, p), p, Replicate(), *_options(*others)])
        for p in _rows(x.ndim)
    ]


@register_sharding(_ops.rmsnorm_backward_x.default)
def _rmsnorm_backward_x(grad, grad_sum, x, weight, *others):
    w = _if_given(weight, Replicate())
    return [([p], [p, _if_given(grad_sum, p), p, w, *_options(*others)]) for p in _rows(x.ndim)]


@register_sharding(_ops.rmsnorm_backward_weight.default)
def _rmsnorm_backward_weight(grad, x, weight, *others):
    return [([_summed(p)], [p, p, Replicate(), *_options(*others)]) for p in _rows(x.ndim)]


@register_sharding(_ops.matmul_forward.default)
def _matmul(A, B, precision):
    last = A.ndim - 1
    return [
        *(([p], [p, Replicate(), None]) for p in _rows(A.ndim)),
        ([Shard(last)], [Replicate(), Shard(1), None]),
        ([Partial()], [Shard(last), Shard(0), None]),
    ]


@register_sharding(_ops.matmul_backward_A.default)
def _matmul_backward_A(grad, B, precision):
    last = grad.ndim - 1
    return [
        *(([p], [p, Replicate(), None]) for p in _rows(grad.ndim)),
        ([Shard(last)], [Replicate(), Shard(0), None]),
        ([Partial()], [Shard(last), Shard(1), None]),
    ]


@register_sharding(_ops.matmul_backward_B.default)
def _matmul_backward_B(A, grad, precision):
    last = A.ndim - 1
    return [
        *(([_summed(p)], [p, p, None]) for p in _rows(A.ndim)),
        ([Shard(0)], [Shard(last), Replicate(), None]),
        ([Shard(1)], [Replicate(), Shard(last), None]),
    ]
