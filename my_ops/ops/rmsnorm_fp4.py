"""my_ops.rmsnorm_fp4_quantize: RMSNorm straight into FP4. Public function and fake."""

import torch
from torch import Tensor

from my_ops._errors import check_bool, raise_expected
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import check_format, check_tensor, given_amax
from my_ops.ops._function import needs_function, raw_operator
from my_ops.ops._rmsnorm_backward import check_operands
from my_ops.ops.fp4 import fp4_quantize, quantize_fake
from my_ops.ops.rmsnorm import check_numbers, rmsnorm

_fused = raw_operator("rmsnorm_fp4_quantize")


def rmsnorm_fp4_quantize(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    format: str = "nvfp4",
    *,
    weight_offset: float = 0.0,
    amax: Tensor | float | None = None,
    two_level: bool = True,
    scale_mode: str = "floor",
) -> FP4Tensor:
    """``fp4_quantize(rmsnorm(x, weight, eps), format)``, the same bytes, in one pass over ``x``.

    Args:
        x: ``[..., H]``, float32, float16 or bfloat16, any strides, on CPU or CUDA.
        weight, eps, weight_offset: as for :func:`my_ops.rmsnorm`.
        format, amax, two_level, scale_mode: as for :func:`my_ops.fp4_quantize`.

    It is one pass where the tensor scale is known before: with ``amax`` given (that of the
    normalized tensor), with ``two_level=False``, and for MXFP4; on CUDA; for rows of 2048 to 16384
    16-bit or 1024 to 8192 float32 elements, in whole FP4 blocks. Elsewhere, and where a gradient
    is recorded, it is the two operators.

    Returns:
        An :class:`my_ops.FP4Tensor` with the shape and dtype of ``x``.

    Raises:
        RuntimeError, TypeError: what the two functions raise.
    """
    check_format("rmsnorm_fp4_quantize", format)
    check_tensor("rmsnorm_fp4_quantize", "x", x)
    if two_level is not True:
        check_bool("rmsnorm_fp4_quantize", "two_level", two_level)
    if not (isinstance(weight_offset, float) and (isinstance(eps, float) or eps is None)):
        check_numbers("rmsnorm_fp4_quantize", eps, weight_offset)
    unknown = format == "nvfp4" and two_level and amax is None
    if unknown or needs_function(x, weight):
        y = rmsnorm(x, weight, eps, weight_offset=weight_offset)
        return fp4_quantize(y, format, amax=amax, two_level=two_level, scale_mode=scale_mode)
    if amax is not None:
        amax = given_amax("rmsnorm_fp4_quantize", amax, x, format, two_level)
    if not isinstance(scale_mode, str):  # fp4_quantize's class of error, not rmsnorm's
        raise_expected("rmsnorm_fp4_quantize", "scale_mode", "a string", type(scale_mode).__name__)
    packed, scale_bytes = _fused(x, weight, eps, weight_offset, amax, format, scale_mode)
    return FP4Tensor(packed, scale_bytes, amax, format, x.shape[-1], x.dtype)


@torch.library.register_fake("my_ops::rmsnorm_fp4_quantize")
def _(x, weight, eps, weight_offset, amax, format, scale_mode):
    op = "rmsnorm_fp4_quantize"
    check_operands(op, x, weight)
    return quantize_fake(x, amax, format, scale_mode, "nearest", 0, op=op)
