"""The FP4 factors of a product: their parts, as the operators take them, and how they are made."""

from typing import NamedTuple

import torch
from torch import Tensor

from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._function import needs_function, raw_operator

_amax = raw_operator("fp4_amax")
_quantize = raw_operator("fp4_quantize")


class PackedFactor(NamedTuple):
    """One FP4 factor as the operators take it: its bytes, its logical shape."""

    packed: Tensor
    scale_bytes: Tensor
    amax: Tensor | None
    shape: tuple[int, ...]
    transposed: bool

    @classmethod
    def of(cls, q: FP4Tensor) -> "PackedFactor":
        return cls(q.packed, q.scale_bytes, q.amax, q.shape, q.transposed)

    def t(self) -> "PackedFactor":
        return self._replace(shape=self.shape[::-1], transposed=not self.transposed)


def tensor_amax(x: Tensor, format: str) -> Tensor | None:
    return _amax(x) if format == "nvfp4" else None


def quantized(
    x: Tensor, amax: Tensor | None, format: str, transposed: bool = False, block2d: bool = False
) -> PackedFactor:
    """x to the nearest, in blocks along its last dimension or, `transposed`, the one before."""
    stored = x.t() if transposed else x
    packed, scale_bytes = _quantize(stored, amax, format, "floor", "nearest", 0, block2d)
    return PackedFactor(packed, scale_bytes, amax, x.shape, transposed)


def without_gradient(x: Tensor) -> Tensor:
    """What of x is quantized; the gradient goes around that."""
    if not needs_function(x):
        return x
    # Compiled, transforms take the Function apart: there x has to reach an operator that refuses
    # to be differentiated, or its gradient would be lost in silence.
    apart = torch._C._are_functorch_transforms_active() and torch.compiler.is_compiling()
    return x if apart else x.detach()
