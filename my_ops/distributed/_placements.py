"""Which placements a product keeps, for the rules of matmul and of the FP4 operators alike.

An option, for one dimension of the mesh: the placement of the result, then of the two operands.
"""

from torch.distributed.tensor import Partial, Replicate, Shard


def rows(ndim: int) -> list:
    """Replicated, or sharded in one of the dimensions that count rows."""
    return [Replicate(), *(Shard(d) for d in range(ndim - 1))]


def summed(placement):
    """What a sum over rows is where the rows have this placement."""
    return Replicate() if placement.is_replicate() else Partial()


def product(ndim: int, kept: int, contracted: int) -> list:
    """[..., C] x matrix -> [..., D]: rows of the left operand of `ndim` dimensions, columns of the
    result, a part of the sum. `kept` (D) and `contracted` (C) are the dimensions of the matrix."""
    last = ndim - 1
    return [
        *((p, p, Replicate()) for p in rows(ndim)),
        (Shard(last), Replicate(), Shard(kept)),
        (Partial(), Shard(last), Shard(contracted)),
    ]


def product_over_rows(ndim: int) -> list:
    """[..., C], [..., D] -> [C, D], the sum over all rows: a part of it, C, or D."""
    last = ndim - 1
    return [
        *((summed(p), p, p) for p in rows(ndim)),
        (Shard(0), Shard(last), Replicate()),
        (Shard(1), Replicate(), Shard(last)),
    ]
