"""my_ops.fp4_linear: a linear layer with an FP4 weight. Public function, Function, fake.

Its C++ is in csrc/fp4_matmul (fp4_matmul.cpp); fp4_matmul.h says which kernel multiplies.
"""

import torch
from torch import Tensor

from my_ops._dense import DTYPE_NAMES, FP4_DTYPES
from my_ops._errors import raise_expected
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import (
    check_columns,
    check_dense,
    check_matrix,
    check_shape,
    check_tensor,
)
from my_ops.ops._fp4_factor import PackedFactor, rows
from my_ops.ops._function import (
    autocast_dtype,
    distinct,
    fast_apply,
    needs_function,
    raw_operator,
)

_forward = raw_operator("fp4_linear_forward")
# grad @ b.T, fp4_matmul's gradient of a, is x @ weight.T too: without a bias, in any dtype.
_forward_any_dtype = raw_operator("fp4_matmul_backward_A")


def fp4_linear(
    x: Tensor,
    weight: FP4Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``x @ weight.T + bias`` with the weight in 4 bits, as :func:`torch.nn.functional.linear`.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16, on CPU or CUDA; it is not quantized.
        weight: an FP4Tensor ``[N, K]``, as ``fp4_quantize(w)`` returns it.
        bias: ``[N]``, float32, float16 or bfloat16, whatever the dtype of ``x``.
        out_dtype: float32, float16 or bfloat16; by default that of ``x``.

    Returns:
        ``[..., N]`` in ``out_dtype``: summed in float32, the bias added there, rounded once. Under
        autocast ``x`` is cast to its dtype first.

    Raises:
        RuntimeError: for another type, dtype, device or shape; the message names the argument.

    ``x`` and ``bias`` have gradients, of any order. ``weight`` has one where it came from a tensor
    that needs it, straight through the quantization: ``grad.T @ x``.
    """
    if not isinstance(weight, FP4Tensor):
        raise_expected("fp4_linear", "weight", "an FP4Tensor", type(weight).__name__)
    shape = weight.shape
    if len(shape) != 2:
        raise_expected("fp4_linear", "weight", "two dimensions", list(shape))
    if not isinstance(x, Tensor) or isinstance(x, FP4Tensor):
        expected = "a dense tensor (fp4_matmul takes two FP4 operands)"
        raise_expected("fp4_linear", "x", expected, type(x).__name__)
    check_tensor("fp4_linear", "x", x)
    if x.device != weight.device:
        raise_expected("fp4_linear", "x", f"the device of weight ({weight.device})", x.device)
    cast = autocast_dtype(x)
    if cast is not None:
        x = x.to(cast)
    factor = PackedFactor.of(weight, shape)
    if out_dtype == x.dtype:
        out_dtype = None
    elif out_dtype is not None:
        _check_as_the_operator(x, factor, bias, out_dtype)
    return _linear_with_gradient(x, weight, bias, factor, weight.format, out_dtype)


def _check_as_the_operator(x, weight: PackedFactor, bias, dtype) -> None:
    """What the operator of fp4_linear checks, before another one takes its place.

    Dynamo traces this, so it cannot be the fakes' `check`.
    """
    op, (N, K) = "fp4_linear", weight.shape
    if not isinstance(dtype, torch.dtype) or dtype not in FP4_DTYPES:
        raise_expected(op, "out_dtype", "float32, float16 or bfloat16", dtype)
    if x.dim() == 0 or x.shape[-1] != K:
        raise_expected(op, "x", f"as many columns as weight has ({K})", list(x.shape))
    if bias is not None:
        if not isinstance(bias, Tensor):
            raise_expected(op, "bias", "a tensor or None", type(bias).__name__)
        if bias.device != x.device:
            raise_expected(op, "bias", f"the device of x ({x.device})", bias.device)
        check_tensor(op, "bias", bias)
        if bias.dim() != 1 or bias.shape[0] != N:
            raise_expected(op, "bias", f"the shape [{N}]", list(bias.shape))


def _linear_with_gradient(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    factor: PackedFactor,
    format: str,
    dtype: torch.dtype | None,
) -> Tensor:
    """dtype: that of the result, or None for that of x."""
    if needs_function(x, weight, bias):
        return FP4LinearFunction.apply(*distinct(x, weight, bias, *factor), format, dtype)
    return _linear_below_autograd(x, factor, bias, format, dtype)


def _linear_below_autograd(
    x: Tensor, factor: tuple, bias: Tensor | None, format: str, dtype: torch.dtype | None
) -> Tensor:
    if dtype is None:
        return _forward(x, *factor, bias, format)
    if bias is None:
        return _forward_any_dtype(x, *factor, format, DTYPE_NAMES[dtype])
    return (_forward_any_dtype(x, *factor, format, "float32") + bias.float()).to(dtype)


@fast_apply("fp4_linear")
class FP4LinearFunction(torch.autograd.Function):
    """weight (or None) is there for its gradient; what is multiplied and saved is packed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight, bias, packed, scale_bytes, amax, shape, transposed, format, dtype):
        factor = packed, scale_bytes, amax, shape, transposed
        return _linear_below_autograd(x, factor, bias, format, dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, packed, scale_bytes, amax, ctx.shape, ctx.transposed, ctx.format, _ = (
            inputs
        )
        ctx.x_dtype, ctx.bias_dtype = x.dtype, bias.dtype if bias is not None else None
        trains_weight = weight is not None and weight.requires_grad
        if not trains_weight:
            # Dynamo finds a symbolic K in backward only by way of a saved tensor.
            compiling = torch.compiler.is_compiling()
            x, weight = x.new_empty((0, x.shape[-1])) if compiling else None, None
        ctx.save_for_backward(packed, scale_bytes, amax, x, weight)

    @staticmethod
    def backward(ctx, grad):
        *stored, x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:  # again a linear layer, with the transposed weight
            N, K = ctx.shape
            shape = (K if x is None else x.shape[-1]), N
            factor = PackedFactor(*stored, shape, not ctx.transposed)
            right = None if weight is None else weight.t()
            dtype = None if grad.dtype == ctx.x_dtype else ctx.x_dtype
            grad_x = _linear_with_gradient(grad, right, None, factor, ctx.format, dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(rows(grad).t(), rows(x), weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = rows(grad).sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return grad_x, grad_weight, grad_bias, *(None,) * 7


def _weight_gradient(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """grad @ x in the weight's dtype: a float32 weight gets no sum rounded to 16 bits, or Inf."""
    wide = torch.promote_types(torch.promote_types(x.dtype, grad.dtype), dtype)
    plain = grad.dtype == x.dtype and not (torch.compiler.is_compiling() or needs_function(grad, x))
    if wide != x.dtype and x.is_cuda and plain:
        return torch.mm(grad, x, out_dtype=wide).to(dtype)  # on tensor cores; no derivative
    return (grad.to(wide) @ x.to(wide)).to(dtype)


@torch.library.register_fake("my_ops::fp4_linear_forward")
def _(
    x, weight_packed, weight_scale, weight_amax, weight_shape, weight_transposed, bias, format
):  # fmt: skip
    op = "fp4_linear"
    check_dense(op, "x", x, "weight_packed", weight_packed)
    weight = weight_packed, weight_scale, weight_amax, weight_shape, weight_transposed
    check_matrix(op, "weight_", *weight, format)
    check_columns(op, "x", x, "weight", weight_shape[1])
    if bias is not None:
        check_dense(op, "bias", bias, "x", x)
        check_shape(op, "bias", bias, weight_shape[:1])
    return x.new_empty((*x.shape[:-1], weight_shape[0]))
