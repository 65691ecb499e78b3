"""my_ops.fp4_matmul: a product of FP4 matrices. Public function, FP4MatMulFunction, fakes."""

import torch
from torch import Tensor

from my_ops._dense import DTYPE_NAMES, FP4_DTYPES
from my_ops._errors import raise_expected
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import (
    check_columns,
    check_dense,
    check_dtype_name,
    check_format,
    check_matrix,
    check_packed,
    check_shape,
    check_tensor,
)
from my_ops.ops._fp4_factor import (
    PackedFactor,
    quantized_with_own_amax,
    save_factors,
    saved_factors,
)
from my_ops.ops._fp4_first_order import first_order
from my_ops.ops._fp4_pair import is_pair
from my_ops.ops._fp4_training import check_options, fp4_training_matmul, seed_tensor
from my_ops.ops._function import (
    autocast_dtype,
    check,
    check_device,
    distinct,
    fast_apply,
    needs_function,
    raw_operator,
)

_forward = raw_operator("fp4_matmul_forward")
_pair_forward = raw_operator("fp4_matmul_pair_forward")
_backward_A = raw_operator("fp4_matmul_backward_A")
_backward_B = raw_operator("fp4_matmul_backward_B")
_pair_backward = raw_operator("fp4_matmul_pair_backward")


def fp4_matmul(
    a: Tensor,
    b: Tensor,
    format: str = "nvfp4",
    *,
    out_dtype: torch.dtype | None = None,
    backward: str = "exact",
    block2d: bool | None = None,
    rht: bool = False,
    seed: int | Tensor | None = None,
) -> Tensor:
    """Multiplies ``a`` and ``b`` in FP4, with float32 sums.

    Args:
        a: ``[..., M, K]``, float32, float16 or bfloat16, on CPU or CUDA, or an FP4Tensor.
        b: ``[K, N]``, likewise; its dtype may differ from that of ``a``.
        format: ``"nvfp4"`` or ``"mxfp4"``. A dense operand is first quantized along K, as
            ``fp4_quantize(a, format)`` and ``fp4_quantize(b, format, axis=0)`` do; an FP4Tensor is
            taken as it is and has to be of this format.
        out_dtype: float32, float16 or bfloat16; by default that of ``a``.
        backward: how the gradients are computed. ``"exact"``: ``grad @ bq.T`` and ``aq.T @ grad``
            with the quantized operands and ``grad`` as it comes. ``"fp4"``: as training on FP4
            hardware does, by products of FP4 operands, each quantized along the dimension summed
            over: ``grad`` along N with ``b``, and along M (all leading dimensions) with ``a``.
        block2d: scale a dense ``b`` in tiles of 16 by 16, in NVFP4, so that ``b`` and ``b.T`` have
            the same codes. By default with ``backward="fp4"``.
        rht: with ``backward="fp4"``, transform ``a`` and ``grad`` by a 16-point Hadamard matrix
            with fixed signs along M before they are quantized for the gradient of ``b``. It cancels
            in their product; what it changes is the rounding. MXFP4 loses less to outliers then.
        seed: with ``backward="fp4"``, of the stochastic rounding of ``grad``: 64 bits, a number or
            one int64 element on the CPU. By default each call draws one from PyTorch's CPU
            generator, so ``torch.manual_seed`` repeats a run and activation checkpointing repeats a
            call; processes that average their gradients want different ones. A captured CUDA graph
            replays the seed of its capture.

    Returns:
        ``[..., M, N]`` in ``out_dtype``: the product of the quantized operands, summed in float32
        and rounded once. Under autocast ``a`` is cast to its dtype first.

    Raises:
        RuntimeError: for another type, dtype, device, shape or option; the message names the
            argument.

    The gradients are straight-through, as if quantizing changed nothing. The operands are kept for
    them in 4 bits. They cannot be differentiated again.
    """
    check_format("fp4_matmul", format)
    _check_operand("a", a, format)
    _check_operand("b", b, format)
    a_shape, b_shape = a.shape, b.shape
    if not a_shape:
        raise_expected("fp4_matmul", "a", "at least one dimension", "none")
    if len(b_shape) != 2 or b_shape[0] != a_shape[-1]:
        raise_expected("fp4_matmul", "b", f"the shape [{a_shape[-1]}, N]", list(b_shape))
    if a.device != b.device:
        raise_expected("fp4_matmul", "b", f"the device of a ({a.device})", b.device)
    cast = autocast_dtype(a)
    if cast is not None:
        a = a.to(cast)
    if out_dtype is None:
        dtype = DTYPE_NAMES[a.dtype]
    elif isinstance(out_dtype, torch.dtype) and out_dtype in FP4_DTYPES:
        dtype = DTYPE_NAMES[out_dtype]
    else:
        raise_expected("fp4_matmul", "out_dtype", "float32, float16 or bfloat16", out_dtype)
    tiles = False
    default = isinstance(backward, str) and backward == "exact"
    plain = rht is False and seed is None and (block2d is None or block2d is False)
    if not (default and plain):
        tiles = check_options("fp4_matmul", format, backward, block2d, rht, seed)
    needed = needs_function(a, b)
    if default and not tiles and is_pair(a, b):
        multiply = FP4PairMatMulFunction.apply if needed else _pair_forward
        return multiply(a, b, format, dtype)[0]
    if isinstance(a, FP4Tensor):
        left = PackedFactor.of(a, a_shape)
    else:
        left = quantized_with_own_amax(a, format, needed)
    if isinstance(b, FP4Tensor):
        right = PackedFactor.of(b, b_shape)
    else:
        right = quantized_with_own_amax(b, format, needed, True, tiles)
    if backward == "fp4":
        # Drawn without gradients, too: a recomputed forward has to find the generator as it was.
        seed = seed_tensor(seed)
        if needed:
            return fp4_training_matmul(a, b, left, right, format, dtype, tiles, rht, seed)
    if needed:
        return FP4MatMulFunction.apply(*distinct(a, b, *left, *right), format, dtype)
    return _forward(*left, *right, format, dtype)


def _check_operand(name: str, x: Tensor, format: str) -> None:
    if not isinstance(x, FP4Tensor):
        check_tensor("fp4_matmul", name, x)
    elif x.format != format:
        expected = f"the format '{format}' of the product"
        raise_expected("fp4_matmul", name, expected, f"'{x.format}'")
    elif x.transposed and x.dim() != 2:
        expected = "a matrix, where it is quantized along the dimension before the last"
        raise_expected("fp4_matmul", name, expected, f"{x.dim()} dimensions")


@fast_apply("fp4_matmul")
class FP4MatMulFunction(torch.autograd.Function):
    """a and b are there for their gradients alone; what is multiplied and saved is packed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a, b, a_packed, a_scale, a_amax, a_shape, a_transposed,
        b_packed, b_scale, b_amax, b_shape, b_transposed, format, dtype,
    ):  # fmt: skip
        return _forward(
            a_packed, a_scale, a_amax, a_shape, a_transposed,
            b_packed, b_scale, b_amax, b_shape, b_transposed, format, dtype,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        save_factors(ctx, inputs[0], inputs[1], inputs[2:7], inputs[7:12])
        ctx.format = inputs[12]

    @staticmethod
    def backward(ctx, grad):
        left, right, anchors = saved_factors(ctx)
        arguments = *left, *right, ctx.format, *ctx.dtypes, *ctx.needs_input_grad[:2]
        return *first_order(_gradients, anchors, grad, *arguments), *(None,) * 12


@fast_apply("fp4_matmul")
class FP4PairMatMulFunction(torch.autograd.Function):
    """As FP4MatMulFunction; what the operator returns beside the product is kept for backward."""

    @staticmethod
    def forward(a, b, format, dtype):
        return _pair_forward(a, b, format, dtype)

    @staticmethod
    def setup_context(ctx, inputs, outputs):
        a, b, ctx.format, _ = inputs
        ctx.mark_non_differentiable(*outputs[1:])
        a_packed, a_scale, a_amax, b_packed, b_scale, b_amax = outputs[1:]
        if ctx.format != "nvfp4":
            a_amax = b_amax = None
        left = PackedFactor(a_packed, a_scale, a_amax, a.shape, False)
        save_factors(ctx, a, b, left, PackedFactor(b_packed, b_scale, b_amax, b.shape, True))

    @staticmethod
    def backward(ctx, grad, *_):
        left, right, anchors = saved_factors(ctx)
        arguments = *left, *right, ctx.format, *ctx.dtypes
        if all(ctx.needs_input_grad[:2]):
            return *first_order(_pair_backward, anchors, grad, *arguments), None, None
        arguments += ctx.needs_input_grad[:2]
        return *first_order(_gradients, anchors, grad, *arguments), None, None


def _gradients(
    grad, a_packed, a_scale, a_amax, a_shape, a_transposed,
    b_packed, b_scale, b_amax, b_shape, b_transposed, format, a_dtype, b_dtype, need_a, need_b,
):  # fmt: skip
    right = b_packed, b_scale, b_amax, b_shape, b_transposed
    left = a_packed, a_scale, a_amax, a_shape, a_transposed
    grad_a = _backward_A(grad, *right, format, a_dtype) if need_a else None
    grad_b = _backward_B(*left, grad, format, b_dtype) if need_b else None
    return grad_a, grad_b


@torch.library.register_fake("my_ops::fp4_matmul_forward")
def _(
    a_packed, a_scale, a_amax, a_shape, a_transposed,
    b_packed, b_scale, b_amax, b_shape, b_transposed, format, dtype,
):  # fmt: skip
    op = "fp4_matmul"
    check_dtype_name(op, dtype)
    check_device(op, "b_packed", b_packed, "a_packed", a_packed)
    check_packed(op, "a_", a_packed, a_scale, a_amax, a_shape, a_transposed, format)
    check_matrix(op, "b_", b_packed, b_scale, b_amax, b_shape, b_transposed, format)
    expected = f"as many rows as a has columns ({a_shape[-1]})"
    check(a_shape[-1] == b_shape[0], op, "b_shape", expected, list(b_shape))
    return a_packed.new_empty((*a_shape[:-1], b_shape[-1]), dtype=getattr(torch, dtype))


@torch.library.register_fake("my_ops::fp4_matmul_backward_A")
def _(grad, b_packed, b_scale, b_amax, b_shape, b_transposed, format, dtype):
    op = "fp4_matmul_backward_A"
    check_dtype_name(op, dtype)
    check_dense(op, "grad", grad, "b_packed", b_packed)
    check_matrix(op, "b_", b_packed, b_scale, b_amax, b_shape, b_transposed, format)
    check_columns(op, "grad", grad, "b", b_shape[1])
    return grad.new_empty((*grad.shape[:-1], b_shape[0]), dtype=getattr(torch, dtype))


@torch.library.register_fake("my_ops::fp4_matmul_backward_B")
def _(a_packed, a_scale, a_amax, a_shape, a_transposed, grad, format, dtype):
    op = "fp4_matmul_backward_B"
    check_dtype_name(op, dtype)
    check_dense(op, "grad", grad, "a_packed", a_packed)
    check_packed(op, "a_", a_packed, a_scale, a_amax, a_shape, a_transposed, format)
    check_shape(op, "grad", grad, (*a_shape[:-1], *grad.shape[-1:]))
    return grad.new_empty((a_shape[-1], grad.shape[-1]), dtype=getattr(torch, dtype))
