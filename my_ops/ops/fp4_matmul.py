"""my_ops.fp4_matmul: a product of FP4 matrices. Public function, FP4MatMulFunction, fakes."""

from typing import NamedTuple

import torch
from torch import Tensor

from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import (
    DTYPE_NAMES,
    check_columns,
    check_dense,
    check_format,
    check_matrix,
    check_name,
    check_packed,
    check_shape,
    check_tensor,
    raise_expected,
)
from my_ops.ops._function import (
    check,
    check_device,
    fast_apply,
    needs_function,
    raw_operator,
)

_amax = raw_operator("fp4_amax")
_quantize = raw_operator("fp4_quantize")
_forward = raw_operator("fp4_matmul_forward")
_backward_A = raw_operator("fp4_matmul_backward_A")
_backward_B = raw_operator("fp4_matmul_backward_B")


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


def fp4_matmul(a: Tensor, b: Tensor, format: str = "nvfp4") -> Tensor:
    """Multiplies ``a`` and ``b`` in FP4, with float32 sums.

    Args:
        a: ``[..., M, K]``, float32, float16 or bfloat16, on CPU or CUDA, or an FP4Tensor.
        b: ``[K, N]``, likewise; its dtype may differ from that of ``a``.
        format: ``"nvfp4"`` or ``"mxfp4"``. A dense operand is first quantized along K, as
            ``fp4_quantize(a, format)`` and ``fp4_quantize(b, format, axis=0)`` do; an FP4Tensor is
            taken as it is and has to be of this format.

    Returns:
        ``[..., M, N]`` in the dtype of ``a``, under autocast too: the product of the quantized
        operands, summed in float32 and rounded once.

    Raises:
        RuntimeError: for another dtype, device, shape or format; the message names the argument.

    The gradients are ``grad @ bq.T`` and ``aq.T @ grad`` with the quantized operands, which are
    kept packed in 4 bits until then, as if quantizing changed nothing (straight-through). They
    cannot be differentiated again.
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
    left = PackedFactor.of(a) if isinstance(a, FP4Tensor) else _packed(a, format, False)
    right = PackedFactor.of(b) if isinstance(b, FP4Tensor) else _packed(b, format, True)
    if needs_function(a, b):
        return FP4MatMulFunction.apply(a, b, *left, *right, format)
    return _forward(*left, *right, format, DTYPE_NAMES[a.dtype])


def _check_operand(name: str, x: Tensor, format: str) -> None:
    check_tensor("fp4_matmul", name, x)
    if isinstance(x, FP4Tensor):
        if x.format != format:
            expected = f"the format '{format}' of the product"
            raise_expected("fp4_matmul", name, expected, f"'{x.format}'")
        if x.transposed and x.dim() != 2:
            expected = "a matrix, where it is quantized along the dimension before the last"
            raise_expected("fp4_matmul", name, expected, f"{x.dim()} dimensions")


def _packed(x: Tensor, format: str, transposed: bool) -> PackedFactor:
    """x, quantized along its last dimension or the one before; the gradient goes around this."""
    if needs_function(x):
        # Compiled, transforms take the Function apart: there x has to reach an operator that
        # refuses to be differentiated, or its gradient would be lost in silence.
        apart = torch._C._are_functorch_transforms_active() and torch.compiler.is_compiling()
        x = x if apart else x.detach()
    amax = _amax(x) if format == "nvfp4" else None
    stored = x.t() if transposed else x
    packed, scale_bytes = _quantize(stored, amax, format, "floor", "nearest", 0, False)
    return PackedFactor(packed, scale_bytes, amax, x.shape, transposed)


@fast_apply
class FP4MatMulFunction(torch.autograd.Function):
    """a and b are there for their gradients alone; what is multiplied and saved is packed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a, b, a_packed, a_scale, a_amax, a_shape, a_transposed,
        b_packed, b_scale, b_amax, b_shape, b_transposed, format,
    ):  # fmt: skip
        return _forward(
            a_packed, a_scale, a_amax, a_shape, a_transposed,
            b_packed, b_scale, b_amax, b_shape, b_transposed, format, DTYPE_NAMES[a.dtype],
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, *left_and_right, ctx.format = inputs
        left, right = left_and_right[:5], left_and_right[5:]
        # Under functorch transforms a and b themselves have to carry a second differentiation to
        # its refusal; otherwise nothing dense is kept.
        transformed = torch._C._are_functorch_transforms_active()
        ctx.save_for_backward(*left[:3], *right[:3], *((a, b) if transformed else ()))
        ctx.left_shape, ctx.right_shape = left[3:], right[3:]
        ctx.dtypes = DTYPE_NAMES[a.dtype], DTYPE_NAMES[b.dtype]

    @staticmethod
    def backward(ctx, grad):
        saved = ctx.saved_tensors
        left, right = (*saved[:3], *ctx.left_shape), (*saved[3:6], *ctx.right_shape)
        arguments = grad, *left, *right, ctx.format, *ctx.dtypes, *ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # An input that needs a gradient, so that a second differentiation is refused and not
            # left out in silence where grad needs none.
            anchors = saved[6:] or (torch.zeros((), requires_grad=True), None)
            gradients = FP4MatMulBackwardFunction.apply(*anchors, *arguments)
        else:
            gradients = _gradients(*arguments)
        return (*gradients, *(None,) * 11)


def _gradients(
    grad, a_packed, a_scale, a_amax, a_shape, a_transposed,
    b_packed, b_scale, b_amax, b_shape, b_transposed, format, a_dtype, b_dtype, need_a, need_b,
):  # fmt: skip
    right = b_packed, b_scale, b_amax, b_shape, b_transposed
    left = a_packed, a_scale, a_amax, a_shape, a_transposed
    grad_a = _backward_A(grad, *right, format, a_dtype) if need_a else None
    grad_b = _backward_B(*left, grad, format, b_dtype) if need_b else None
    return grad_a, grad_b


@fast_apply
class FP4MatMulBackwardFunction(torch.autograd.Function):
    """The gradients of fp4_matmul where a graph of them is recorded."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        anchor_a, anchor_b, grad, a_packed, a_scale, a_amax, a_shape, a_transposed,
        b_packed, b_scale, b_amax, b_shape, b_transposed, format, a_dtype, b_dtype, need_a, need_b,
    ):  # fmt: skip
        return _gradients(
            grad, a_packed, a_scale, a_amax, a_shape, a_transposed,
            b_packed, b_scale, b_amax, b_shape, b_transposed,
            format, a_dtype, b_dtype, need_a, need_b,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(
            "my_ops.fp4_matmul: its gradients cannot be differentiated again: the operands are "
            "kept in 4 bits only"
        )


@torch.library.register_fake("my_ops::fp4_matmul_forward")
def _(
    a_packed, a_scale, a_amax, a_shape, a_transposed,
    b_packed, b_scale, b_amax, b_shape, b_transposed, format, dtype,
):  # fmt: skip
    op = "fp4_matmul"
    check_name(op, "dtype", dtype, DTYPE_NAMES.values())
    check_device(op, "b_packed", b_packed, "a_packed", a_packed)
    check_packed(op, "a_", a_packed, a_scale, a_amax, a_shape, a_transposed, format)
    check_matrix(op, "b_", b_packed, b_scale, b_amax, b_shape, b_transposed, format)
    expected = f"as many rows as a has columns ({a_shape[-1]})"
    check(a_shape[-1] == b_shape[0], op, "b_shape", expected, list(b_shape))
    return a_packed.new_empty((*a_shape[:-1], b_shape[-1]), dtype=getattr(torch, dtype))


@torch.library.register_fake("my_ops::fp4_matmul_backward_A")
def _(grad, b_packed, b_scale, b_amax, b_shape, b_transposed, format, dtype):
    op = "fp4_matmul_backward_A"
    check_name(op, "dtype", dtype, DTYPE_NAMES.values())
    check_dense(op, "grad", grad, "b_packed", b_packed)
    check_matrix(op, "b_", b_packed, b_scale, b_amax, b_shape, b_transposed, format)
    check_columns(op, "grad", grad, "b", b_shape[1])
    return grad.new_empty((*grad.shape[:-1], b_shape[0]), dtype=getattr(torch, dtype))


@torch.library.register_fake("my_ops::fp4_matmul_backward_B")
def _(a_packed, a_scale, a_amax, a_shape, a_transposed, grad, format, dtype):
    op = "fp4_matmul_backward_B"
    check_name(op, "dtype", dtype, DTYPE_NAMES.values())
    check_dense(op, "grad", grad, "a_packed", a_packed)
    check_packed(op, "a_", a_packed, a_scale, a_amax, a_shape, a_transposed, format)
    check_shape(op, "grad", grad, (*a_shape[:-1], *grad.shape[-1:]))
    return grad.new_empty((a_shape[-1], grad.shape[-1]), dtype=getattr(torch, dtype))
