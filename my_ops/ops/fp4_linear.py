"""my_ops.fp4_linear: a linear layer with an FP4 weight. Public function, Function, fake."""

import torch
from torch import Tensor

from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import (
    check_columns,
    check_dense,
    check_matrix,
    check_shape,
    check_tensor,
    raise_expected,
)
from my_ops.ops._function import fast_apply, needs_function, raw_operator
from my_ops.ops.fp4_matmul import PackedFactor

_forward = raw_operator("fp4_linear_forward")


def fp4_linear(x: Tensor, weight: FP4Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` with the weight in 4 bits, as :func:`torch.nn.functional.linear`.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16, on CPU or CUDA; it is not quantized.
        weight: an FP4Tensor ``[N, K]``, as ``fp4_quantize(w)`` returns it.
        bias: ``[N]``, float32, float16 or bfloat16, whatever the dtype of ``x``.

    Returns:
        ``[..., N]`` in the dtype of ``x``, under autocast too: summed in float32, the bias added
        there, rounded once.

    Raises:
        RuntimeError: for another type, dtype, device or shape; the message names the argument.

    ``x`` and ``bias`` have gradients, of any order. ``weight`` has one where it came from a tensor
    that needs it, straight through the quantization: ``grad.T @ x``.
    """
    if not isinstance(weight, FP4Tensor):
        raise_expected("fp4_linear", "weight", "an FP4Tensor", type(weight).__name__)
    if weight.dim() != 2:
        raise_expected("fp4_linear", "weight", "two dimensions", list(weight.shape))
    if not isinstance(x, Tensor) or isinstance(x, FP4Tensor):
        expected = "a dense tensor (fp4_matmul takes two FP4 operands)"
        raise_expected("fp4_linear", "x", expected, type(x).__name__)
    check_tensor("fp4_linear", "x", x)
    if x.device != weight.device:
        raise_expected("fp4_linear", "x", f"the device of weight ({weight.device})", x.device)
    return _linear(x, weight, bias, PackedFactor.of(weight), weight.format)


def _linear(x, weight, bias, factor, format):
    if needs_function(x, weight, bias):
        return FP4LinearFunction.apply(x, weight, bias, *factor, format)
    return _forward(x, *factor, bias, format)


@fast_apply
class FP4LinearFunction(torch.autograd.Function):
    """weight (or None) is there for its gradient; what is multiplied and saved is packed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight, bias, packed, scale_bytes, amax, shape, transposed, format):
        return _forward(x, packed, scale_bytes, amax, shape, transposed, bias, format)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, *factor, ctx.format = inputs
        ctx.shape, ctx.transposed = factor[3:]
        ctx.bias_dtype = bias.dtype if bias is not None else None
        trains_weight = weight is not None and weight.requires_grad
        if not trains_weight:
            # Dynamo finds a symbolic K in backward only by way of a saved tensor.
            compiling = torch.compiler.is_compiling()
            x, weight = x.new_empty((0, x.shape[-1])) if compiling else None, None
        ctx.save_for_backward(*factor[:3], x, weight)

    @staticmethod
    def backward(ctx, grad):
        *stored, x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:  # again a linear layer, with the transposed weight
            N, K = ctx.shape
            shape = (K if x is None else x.shape[-1]), N
            factor = PackedFactor(*stored, shape, not ctx.transposed)
            grad_x = _linear(grad, None if weight is None else weight.t(), None, factor, ctx.format)
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(_rows(grad).t(), _rows(x), weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = _rows(grad).sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return grad_x, grad_weight, grad_bias, *(None,) * 6


def _weight_gradient(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """grad @ x in the weight's dtype: a float32 weight gets no sum rounded to 16 bits, or Inf."""
    wide = torch.promote_types(x.dtype, dtype)
    plain = not (torch.compiler.is_compiling() or needs_function(grad, x))
    if wide != x.dtype and x.is_cuda and plain:
        return torch.mm(grad, x, out_dtype=wide).to(dtype)  # on tensor cores; no derivative
    return (grad.to(wide) @ x.to(wide)).to(dtype)


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


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
