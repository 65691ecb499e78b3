"""my_ops.fp4_quantize and fp4_dequantize: NVFP4 and MXFP4. Public functions, Functions, fakes."""

import torch
from torch import Tensor

from my_ops._errors import check_bool, raise_expected
from my_ops._fp4_handlers import values
from my_ops._fp4_scales import BLOCK_SIZE, scaled_magnitudes
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import (
    SCALE_MODES,
    blocks,
    check_amax,
    check_dtype_name,
    check_format,
    check_name,
    check_packed,
    check_tensor,
    check_x,
    given_amax,
    is_first_axis,
    signed_seed,
)
from my_ops.ops._function import check, fast_apply, needs_function, raw_operator

_quantize = raw_operator("fp4_quantize")
_quantize_two_level = raw_operator("fp4_quantize_two_level")


def fp4_quantize(
    x: Tensor,
    format: str = "nvfp4",
    *,
    axis: int = -1,
    amax: Tensor | float | None = None,
    two_level: bool = True,
    scale_mode: str = "floor",
    rounding: str = "nearest",
    seed: int = 0,
    block2d: bool = False,
    ste: str = "plain",
) -> FP4Tensor:
    """Rounds ``x`` to 4-bit floats with a scale for each block along its last dimension.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16, any strides, on CPU or CUDA.
        format: ``"nvfp4"`` (blocks of 16, E4M3 scales and one float32 per tensor) or ``"mxfp4"``
            (blocks of 32, scales that are powers of two).
        axis: the dimension that the blocks lie along: the last, or 0 for a matrix. Then the bytes
            are those of ``fp4_quantize(x.t())``, and the result is its transpose. Neither copies.
        amax: NVFP4's largest magnitude of the tensor, where it is known: it saves a pass over
            ``x``. Larger elements saturate. One float32 element or a number.
        two_level: False leaves out NVFP4's tensor scale.
        scale_mode: how MXFP4 rounds a scale: ``"floor"``, ``"rceil"``, ``"ceil"``, ``"even"``.
        rounding: ``"nearest"`` (ties to even) or ``"stochastic"``, up with a probability equal to
            the distance: the same bits for one ``seed`` on every device.
        seed: of the stochastic rounding, 64 bits.
        block2d: NVFP4 and a matrix: tiles of 16 by 16 elements share a scale, which each of their
            rows repeats. A weight and its transpose then have the same codes.
        ste: the gradient of ``x``: ``"plain"`` passes it unchanged, ``"clipped"`` makes it zero
            where the scaled magnitude exceeds 6, the largest code (with a small ``amax``).

    Returns:
        An :class:`my_ops.FP4Tensor` with the shape and dtype of ``x``. The bytes are the same on
        CPU and CUDA for every input. Magnitudes above the largest saturate, Inf too in NVFP4; a
        NaN, in MXFP4 also an Inf, makes its whole block NaN.

    Raises:
        RuntimeError: for another type, dtype, device, name or ``amax``; the message names the
            argument.

    The gradient is straight-through. NVFP4 is that of NVIDIA, "Pretraining Large Language Models
    with NVFP4", 2025; MXFP4 that of the OCP Microscaling Formats (MX) Specification 1.0, 2023.
    """
    check_format("fp4_quantize", format)
    if not isinstance(ste, str) or ste not in _FUNCTIONS:
        raise_expected("fp4_quantize", "ste", "'plain' or 'clipped'", repr(ste))
    if two_level is not True:
        check_bool("fp4_quantize", "two_level", two_level)
    if block2d is not False:
        check_bool("fp4_quantize", "block2d", block2d)
    check_tensor("fp4_quantize", "x", x)
    if x.dim() == 0:
        raise_expected("fp4_quantize", "x", "at least one dimension", "a tensor without dimensions")
    transformed = torch._C._are_functorch_transforms_active()
    if transformed:
        _refuse_transforms(x, amax)
    transposed = is_first_axis(axis, x.dim())
    x = x.t() if transposed else x
    if amax is not None:
        amax = given_amax("fp4_quantize", amax, x, format, two_level)
    seed = signed_seed(seed)
    arguments = x, amax, format, two_level, scale_mode, rounding, seed, block2d
    needed = not transformed and needs_function(x)
    q = (_FUNCTIONS[ste].apply if needed else _quantized)(*arguments)
    return q.t() if transposed else q


def fp4_dequantize(q: FP4Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The values of ``q``: code times block scale times tensor scale, rounded to ``dtype``.

    Args:
        q: what :func:`fp4_quantize` returned.
        dtype: float32, float16 or bfloat16; by default that of ``q``. MXFP4 in the modes rceil,
            ceil and even can decode float16 values near the top to 65536, Inf in float16.

    Returns:
        A dense tensor with the shape of ``q``; that of a ``t()`` is a transposed view.

    Raises:
        RuntimeError: for another ``q`` or ``dtype``.

    The gradient passes unchanged.
    """
    if not isinstance(q, FP4Tensor):
        raise_expected("fp4_dequantize", "q", "an FP4Tensor", type(q).__name__)
    if q.transposed:
        return fp4_dequantize(q.mT, dtype).mT  # type: ignore[arg-type]
    if dtype is None:
        dtype = q.dtype
    elif not isinstance(dtype, torch.dtype):
        raise_expected("fp4_dequantize", "dtype", "a torch.dtype or None", repr(dtype))
    # Not needs_function: an FP4Tensor is never what a torch.func transform differentiates or maps.
    needed = torch.is_grad_enabled() and q.requires_grad
    return (FP4DequantizeFunction.apply if needed else values)(q, dtype, q.K)


def _refuse_transforms(x, amax) -> None:
    if _is_transformed(x, amax):
        got = "one inside"
    elif torch.is_grad_enabled() and x.requires_grad:
        got = "one inside that needs a gradient"
    else:
        return
    expected = "a tensor outside of torch.func transforms, which do not carry an FP4Tensor"
    got += "; my_ops.fp4_matmul(x, ...) works there"
    raise_expected("fp4_quantize", "x", expected, got)


def _is_transformed(*values) -> bool:
    if torch.compiler.is_compiling():  # which cannot tell; outside of a graph this will
        return True
    return any(
        torch._C._functorch.is_functorch_wrapped_tensor(value)
        for value in values
        if isinstance(value, Tensor)
    )


def _quantized(x, amax, format, two_level, scale_mode, rounding, seed, block2d):
    if amax is None and two_level and format == "nvfp4":
        parts = _quantize_two_level(x, scale_mode, rounding, seed, block2d)
    else:
        parts = *_quantize(x, amax, format, scale_mode, rounding, seed, block2d), amax
    return FP4Tensor(*parts, format, x.shape[-1], x.dtype)


@fast_apply("fp4_quantize")
class FP4QuantizeFunction(torch.autograd.Function):
    forward = staticmethod(_quantized)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad, *[None] * 7


@fast_apply("fp4_quantize")
class FP4ClippedQuantizeFunction(torch.autograd.Function):
    """The same with no gradient where the largest code cuts a value off."""

    forward = staticmethod(_quantized)

    @staticmethod
    def setup_context(ctx, inputs, q):
        ctx.save_for_backward(inputs[0], q.scale_bytes, q.amax)
        ctx.format = q.format

    @staticmethod
    def backward(ctx, grad):
        x, scale_bytes, amax = ctx.saved_tensors
        clipped = scaled_magnitudes(x.detach(), scale_bytes, amax, ctx.format) > 6
        return grad.masked_fill(clipped, 0), *[None] * 7


_FUNCTIONS = {"plain": FP4QuantizeFunction, "clipped": FP4ClippedQuantizeFunction}


@fast_apply("fp4_dequantize")
class FP4DequantizeFunction(torch.autograd.Function):
    forward = staticmethod(values)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


@torch.library.register_fake("my_ops::fp4_amax")
def _(x):
    check_x("fp4_amax", x)
    return x.new_empty((), dtype=torch.float32)


@torch.library.register_fake("my_ops::fp4_quantize")
def quantize_fake(
    x, amax, format, scale_mode, rounding, seed, block2d=False, op="fp4_quantize"
):  # fmt: skip
    check_x(op, x)
    check_name(op, "format", format, BLOCK_SIZE)
    check_name(op, "scale_mode", scale_mode, SCALE_MODES)
    check_name(op, "rounding", rounding, ("nearest", "stochastic"))
    if format == "nvfp4":
        expected = "'floor' (the other modes are those of 'mxfp4')"
        check(scale_mode == "floor", op, "scale_mode", expected, f"'{scale_mode}'")
    tiles = not block2d or (format == "nvfp4" and x.dim() == 2)
    got = f"True for {x.dim()} dimensions and '{format}'"
    check(tiles, op, "block2d", "False, but for a matrix and 'nvfp4'", got)
    check_amax(op, "amax", amax, format, "x", x)
    *leading, K = x.shape
    sizes = blocks(K, 2), blocks(K, BLOCK_SIZE[format])
    return tuple(x.new_empty((*leading, size), dtype=torch.uint8) for size in sizes)


@torch.library.register_fake("my_ops::fp4_quantize_two_level")
def _(x, scale_mode, rounding, seed, block2d=False):
    packed, scale = quantize_fake(x, None, "nvfp4", scale_mode, rounding, seed, block2d)
    return packed, scale, x.new_empty((), dtype=torch.float32)


@torch.library.register_fake("my_ops::fp4_dequantize")
def _(packed, scale, amax, K, format, dtype):
    check_dtype_name("fp4_dequantize", dtype)
    shape = *packed.shape[:-1], K
    check_packed("fp4_dequantize", "", packed, scale, amax, shape, False, format)
    return packed.new_empty(shape, dtype=getattr(torch, dtype))
