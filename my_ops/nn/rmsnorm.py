"""my_ops.nn.RMSNorm: torch.nn.RMSNorm over the last dimension, computed by my_ops.rmsnorm."""

import numbers
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from my_ops._errors import raise_expected
from my_ops.ops.rmsnorm import check_numbers, rmsnorm


def _one_size(dim) -> int:
    try:
        (size,) = (dim,) if isinstance(dim, numbers.Integral) else dim
        size = operator.index(size)
    except (TypeError, ValueError):
        size = -1
    if size < 0:
        raise_expected("nn.RMSNorm", "dim", "one size", repr(dim), ValueError)
    return size


class RMSNorm(torch.nn.Module):
    """Root mean square normalization over the last dimension, with a weight for each column.

    Args:
        dim: the size of the last dimension, a number or a sequence of one number.
        eps: see :func:`my_ops.rmsnorm`. The default is 1e-6; that of torch.nn.RMSNorm is None, the
            machine epsilon of the dtype in which it computes.
        elementwise_affine: False leaves the weight out.
        weight_offset: see :func:`my_ops.rmsnorm`. The weight starts at ``1 - weight_offset``.
        cast_order, out_dtype: see :func:`my_ops.rmsnorm`.

    Called with ``[..., dim]`` it returns what :func:`my_ops.rmsnorm` returns, and raises what it
    raises.

    Raises:
        ValueError: for a ``dim`` that is not one size.
        TypeError: for a ``weight_offset`` that is no number.
    """

    weight: torch.nn.Parameter | None

    def __init__(
        self,
        dim: int | Sequence[int],
        eps: float | None = 1e-6,
        elementwise_affine: bool = True,
        device=None,
        dtype: torch.dtype | None = None,
        *,
        weight_offset: float = 0.0,
        cast_order: str = "torch",
        out_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.dim = _one_size(dim)
        check_numbers("nn.RMSNorm", None, weight_offset)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight_offset = weight_offset
        self.cast_order = cast_order
        self.out_dtype = out_dtype
        weight = torch.empty(self.dim, device=device, dtype=dtype) if elementwise_affine else None
        self.register_parameter("weight", None if weight is None else torch.nn.Parameter(weight))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            torch.nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    def forward(self, x: Tensor) -> Tensor:
        return rmsnorm(
            x,
            self.weight,
            self.eps,
            weight_offset=self.weight_offset,
            cast_order=self.cast_order,
            out_dtype=self.out_dtype,
        )

    def extra_repr(self) -> str:
        shown = f"{self.dim}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        for name, default in (("weight_offset", 0.0), ("cast_order", "torch"), ("out_dtype", None)):
            value = getattr(self, name)
            if value != default:
                shown += f", {name}={value!r}"
        return shown
