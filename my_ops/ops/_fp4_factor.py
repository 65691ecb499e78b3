"""The FP4 factors of a product: their parts, as the operators take them, and how they are made."""

from typing import NamedTuple

import torch
from torch import Tensor

from my_ops._dense import DTYPE_NAMES
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._function import raw_operator, transforms_are_active

_amax = raw_operator("fp4_amax")
_quantize = raw_operator("fp4_quantize")
_quantize_two_level = raw_operator("fp4_quantize_two_level")


class PackedFactor(NamedTuple):
    """One FP4 factor as the operators take it: its bytes, its logical shape."""

    packed: Tensor
    scale_bytes: Tensor
    amax: Tensor | None
    shape: tuple[int, ...]
    transposed: bool

    @classmethod
    def of(cls, q: FP4Tensor, shape: tuple[int, ...] | None = None) -> "PackedFactor":
        """`shape`: that of q, where it is known; a subclass takes 0.2 us to tell it."""
        # _make: at 0.3 us, half the time of cls(...)
        return cls._make((q.packed, q.scale_bytes, q.amax, shape or q.shape, q.transposed))

    def t(self) -> "PackedFactor":
        return self._replace(shape=self.shape[::-1], transposed=not self.transposed)


def tensor_amax(x: Tensor, format: str) -> Tensor | None:
    return _amax(x) if format == "nvfp4" else None


def quantized(
    x: Tensor, amax: Tensor | None, format: str, block2d: bool = False, transposed: bool = False
) -> PackedFactor:
    """x, rounded to the nearest, in blocks along its last dimension or, `transposed`, its first
    of two."""
    stored = x.t() if transposed else x
    codes, scale_bytes = _quantize(stored, amax, format, "floor", "nearest", 0, block2d)
    return PackedFactor._make((codes, scale_bytes, amax, x.shape, transposed))


def quantized_with_own_amax(
    x: Tensor, format: str, needs_gradient: bool, transposed: bool = False, block2d: bool = False
) -> PackedFactor:
    """A dense operand of the product, with an amax of its own."""
    if needs_gradient:
        x = without_gradient(x)
    if format != "nvfp4":
        return quantized(x, None, format, block2d, transposed)
    stored = x.t() if transposed else x
    codes, scale_bytes, amax = _quantize_two_level(stored, "floor", "nearest", 0, block2d)
    return PackedFactor._make((codes, scale_bytes, amax, x.shape, transposed))


def rows(x: Tensor) -> Tensor:
    """x [..., K] as a matrix."""
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


def without_gradient(x: Tensor) -> Tensor:
    """What of x is quantized; the gradient goes around that."""
    # Compiled, transforms take the Function apart: there x has to reach an operator that refuses
    # to be differentiated, or its gradient would be lost in silence.
    apart = transforms_are_active() and torch.compiler.is_compiling()
    return x if apart else x.detach()


def save_factors(ctx, a: Tensor, b: Tensor, left, right, *others: Tensor) -> None:
    """For backward: the factors of a and b, each where the other needs a gradient."""
    needs_a, needs_b = ctx.needs_input_grad[:2]
    # Under functorch transforms a and b themselves have to carry a second differentiation to its
    # refusal; otherwise nothing dense is kept.
    anchors = (a, b) if transforms_are_active() else ()
    nothing = None, None, None
    ctx.save_for_backward(
        *(left[:3] if needs_b else nothing), *(right[:3] if needs_a else nothing), *others, *anchors
    )
    ctx.left_shape, ctx.right_shape = left[3:], right[3:]
    ctx.dtypes = DTYPE_NAMES[a.dtype], DTYPE_NAMES[b.dtype]


def saved_factors(ctx):
    """What was saved: the parts of left, those of right, all other tensors."""
    saved = ctx.saved_tensors
    return (*saved[:3], *ctx.left_shape), (*saved[3:6], *ctx.right_shape), saved[6:]
