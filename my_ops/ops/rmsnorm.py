"""my_ops.rmsnorm and add_rmsnorm. Public functions, fakes, the named operator.

With rstd = 1 / sqrt(mean(x^2) + eps) over the last dimension, y = x * rstd * (weight + offset). The
derivatives are in csrc/rmsnorm/rmsnorm_autograd.cpp.
"""

import numbers

import torch
from torch import Tensor

from my_ops._dense import DTYPE_NAMES
from my_ops._errors import raise_expected
from my_ops.ops._function import check, check_like, raw_operator, refuse_forward_mode
from my_ops.ops._rmsnorm_backward import check_operands, gradients, register_row_vmap

_forward = raw_operator("rmsnorm_forward")
_add_forward = raw_operator("add_rmsnorm_forward")

_ROUND_BEFORE_WEIGHT = {"torch": False, "hf": True}


def rmsnorm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    *,
    weight_offset: float = 0.0,
    cast_order: str = "torch",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Root mean square normalization over the last dimension, times ``weight``.

    ``y = x / sqrt(mean(x ** 2, -1) + eps) * (weight + weight_offset)``; Zhang and Sennrich, "Root
    Mean Square Layer Normalization", 2019.

    Args:
        x: ``[..., H]``, float16, bfloat16, float32 or float64, on CPU or CUDA. Rows may lie
            anywhere; where the last dimension is not dense ``x`` is copied.
        weight: ``[H]``; its dtype may differ from that of ``x`` (float64 only with a float64
            ``x``). None: no product.
        eps: added to the mean square. None: the machine epsilon of float32, of float64 for a
            float64 ``x``, as in :func:`torch.nn.functional.rms_norm`.
        weight_offset: added to ``weight`` in float32; 1.0 is Gemma's ``1 + weight``.
        cast_order: ``"torch"`` computes in float32 and rounds once; ``"hf"`` rounds ``x * rstd``
            to the dtype of ``x`` before the product, as Hugging Face's Llama does.
        out_dtype: the dtype of the result: float16, bfloat16 or float32, of a float64 ``x``
            float64. None: that of ``x``.

    Returns:
        A new contiguous tensor with the shape of ``x``. 16-bit results are within one unit in the
        last place of the exact ones, float32 results within two; a row does not depend on how
        many others there are. Squares of bfloat16 are added in float32: elements above 1e18, or
        all below 1e-18 with an ``eps`` of 0, are out of its range.

    Raises:
        RuntimeError: for a dtype, device or shape that does not fit, and for an ``eps`` that is
            negative or NaN; the message names the argument.
        ValueError: for another ``cast_order``.
        TypeError: for an argument of another type.

    The gradients are those of the formula, whatever ``cast_order`` is, and can be differentiated
    again. The gradient of ``weight`` has the same bits in every run.
    """
    if not (isinstance(weight_offset, float) and (isinstance(eps, float) or eps is None)):
        check_numbers("rmsnorm", eps, weight_offset)
    options = _options("rmsnorm", cast_order, out_dtype)
    return _forward(x, weight, eps, weight_offset, *options)


def add_rmsnorm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    *,
    weight_offset: float = 0.0,
    cast_order: str = "torch",
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns ``(rmsnorm(x + residual, ...), x + residual)`` in one pass over memory.

    Args:
        x: ``[..., H]``, see :func:`rmsnorm`, as for all arguments that follow ``residual``.
        residual: the shape, dtype and device of ``x``.

    Returns:
        ``y`` and the sum, two new contiguous tensors with the shape of ``x``. The sum is rounded to
        the dtype of ``x`` before it is normalized: the bits of the two steps one after the other.

    Raises:
        RuntimeError, ValueError, TypeError: as :func:`rmsnorm`.

    Both results have gradients, of any order; ``x`` and ``residual`` receive the same one.
    """
    if not (isinstance(weight_offset, float) and (isinstance(eps, float) or eps is None)):
        check_numbers("add_rmsnorm", eps, weight_offset)
    options = _options("add_rmsnorm", cast_order, out_dtype)
    return _add_forward(x, residual, weight, eps, weight_offset, *options)


_NUMBERS = (float, int, numbers.Real, torch.SymInt, torch.SymFloat)


def check_numbers(op: str, eps, weight_offset) -> None:
    """Refuses tensors, whose gradient would be lost in silence, and arrays; pybind11 takes both.

    Callers look for floats themselves first, as a call costs more than that.
    """
    if eps is not None and not isinstance(eps, _NUMBERS):
        raise_expected(op, "eps", "a number or None", type(eps).__name__, TypeError)
    if not isinstance(weight_offset, _NUMBERS):
        raise_expected(op, "weight_offset", "a number", type(weight_offset).__name__, TypeError)


def _options(op, cast_order, out_dtype):
    """round_before_weight and the dtype's name, as the operators take them."""
    named = isinstance(cast_order, str)
    if named and cast_order == "torch" and out_dtype is None:
        return False, None
    if not named or cast_order not in _ROUND_BEFORE_WEIGHT:
        raise_expected(op, "cast_order", "'torch' or 'hf'", repr(cast_order), ValueError)
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise_expected(op, "out_dtype", "a torch.dtype", repr(out_dtype), TypeError)
    name = None if out_dtype is None else DTYPE_NAMES[out_dtype]
    return _ROUND_BEFORE_WEIGHT[cast_order], name


def _dtype_named(op, name, x):
    """For a fake: the dtype of y."""
    if name is None:
        return x.dtype
    wide = x.dtype == torch.float64
    expected = "float64 for a float64 x" if wide else "float16, bfloat16 or float32"
    names = ("float64",) if wide else ("float16", "bfloat16", "float32")
    check(name in names, op, "out_dtype", expected, name)
    return getattr(torch, name)


@torch.library.register_fake("my_ops::rmsnorm_forward")
def _(x, weight, eps, weight_offset, round_before_weight, out_dtype):
    check_operands("rmsnorm", x, weight)
    return x.new_empty(x.shape, dtype=_dtype_named("rmsnorm", out_dtype, x))


@torch.library.register_fake("my_ops::add_rmsnorm_forward")
def _(x, residual, weight, eps, weight_offset, round_before_weight, out_dtype):
    check_operands("add_rmsnorm", x, weight)
    check_like("add_rmsnorm", "residual", residual, "x", x)
    dtype = _dtype_named("add_rmsnorm", out_dtype, x)
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape)


register_row_vmap("rmsnorm_forward", row_arguments=1)
register_row_vmap("add_rmsnorm_forward", row_arguments=2, outputs=2)


# torch.ops.my_ops.rmsnorm: the same operator by name, differentiable, for graphs and exports.
@torch.library.custom_op(
    "my_ops::rmsnorm",
    mutates_args=(),
    schema="(Tensor x, Tensor? weight=None, float? eps=1e-6) -> Tensor",
)
def _named(x, weight=None, eps=1e-6):
    refuse_forward_mode("rmsnorm")
    return _forward(x, weight, eps, 0.0, False, None)


@_named.register_fake
def _(x, weight=None, eps=1e-6):
    check_operands("rmsnorm", x, weight)
    return x.new_empty(x.shape)


def _named_setup_context(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _named_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    # `needs_input_grad` ends before arguments that were left out.
    wanted = ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[1]
    return *gradients(*wanted, grad, x, weight, ctx.eps), None


_named.register_autograd(_named_backward, setup_context=_named_setup_context)
