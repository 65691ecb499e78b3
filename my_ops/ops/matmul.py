"""Matrix product a @ b in a precision of its own, whatever torch's global switches say.

    a [..., M, K], b [K, N] -> [..., M, N]; float32 and float64; CPU and CUDA; any strides

The gradients are products of the same kind (grad @ b^T and a^T @ grad): the three operators
below are each other's derivatives and can be differentiated as often as one likes.
"""

import torch
from torch import Tensor

from my_ops._errors import raise_expected
from my_ops.ops._function import (
    autocast_dtype,
    check,
    check_like,
    distinct,
    fast_apply,
    map_each,
    needs_function,
    raw_operator,
    refuse_forward_mode,
)

_forward = raw_operator("matmul_forward")
_backward_A = raw_operator("matmul_backward_A")
_backward_B = raw_operator("matmul_backward_B")

PRECISIONS = ("ieee", "bf16x6", "fp16x3", "tf32")


def matmul(
    a: Tensor, b: Tensor, *, precision: str = "ieee", backward_precision: str | None = None
) -> Tensor:
    """Returns ``a @ b`` with ``a`` [..., M, K] and ``b`` [K, N].

    Args:
        a: float32 or float64, any strides; its leading dimensions are flattened.
        b: a matrix of the same dtype and device.
        precision: how float32 is multiplied, whatever ``torch.set_float32_matmul_precision`` and
            autocast say. Under autocast 16-bit operands are taken too, as float32.

            - ``"ieee"``: multiplies and adds in float32.
            - ``"bf16x6"``: on the tensor cores, with an error below that of ``"ieee"`` for every
              range of inputs. Each operand is split into three bfloat16; six products of them.
              What lies under 2^-133 of an operand is lost.
            - ``"fp16x3"``: faster, with that accuracy from K = 4096 on, relative to the largest
              elements (at K = 512 the error is up to twice that of ``"ieee"``): each row of ``a``
              and column of ``b``, in pieces of 128 along K, keeps 22 bits of elements above 2^-17
              of its largest one, and 2^-40 of that one as absolute error below.
            - ``"tf32"``: operands rounded to the nearest 11 bits. They are multiplied as TF32; in
              large products, where the range of each 256 neighbours along K allows, as float16.

            The last three need a Hopper GPU. Elsewhere, and for products that are too small to
            gain from it, they are ``"ieee"``; so are products with an infinity or a NaN in an
            operand of the first two (``"fp16x3"``: an element of 2^60 or more). They take
            workspace: 6, 4 and at most 6 bytes for each element of the operands.
        backward_precision: that of the gradients; the same by default.

    Returns:
        A new contiguous tensor ``[..., M, N]`` of the dtype of ``a``; zeros where K is 0.

    Raises:
        RuntimeError: for another precision, dtype, device or shape; the message names the argument.
        TypeError: for an argument of another type.

    The gradients, ``grad @ b.T`` and ``a.T @ grad``, can be differentiated again. Splitting into
    bfloat16: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype
    For Higher-Precision Computations", 2019; into float16: Ootomo and Yokota, "Recovering single
    precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance",
    2022.
    """
    if backward_precision is None:
        backward_precision = precision
    elif not isinstance(backward_precision, str) or backward_precision not in PRECISIONS:
        expected = '"ieee", "bf16x6", "fp16x3", "tf32" or None'
        raise_expected("matmul", "backward_precision", expected, f'"{backward_precision}"')
    a, b = _widened(a), _widened(b)
    if needs_function(a, b):
        return MatmulFn.apply(*distinct(a, b), precision, backward_precision)
    return _forward(a, b, precision)


def _widened(x: Tensor) -> Tensor:
    """Autocast's policy for functions that need float32: what a linear layer returns fits here."""
    narrow = isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if narrow and autocast_dtype(x) is not None else x


def _matmul(a: Tensor, b: Tensor, precision: str) -> Tensor:
    if needs_function(a, b):
        return MatmulFn.apply(a, b, precision, precision)
    return _forward(a, b, precision)


def _matmul_backward_A(grad: Tensor, b: Tensor, precision: str) -> Tensor:
    if needs_function(grad, b):
        return MatmulBackwardAFn.apply(grad, b, precision)
    return _backward_A(grad, b, precision)


def _matmul_backward_B(a: Tensor, grad: Tensor, precision: str) -> Tensor:
    if needs_function(a, grad):
        return MatmulBackwardBFn.apply(a, grad, precision)
    return _backward_B(a, grad, precision)


def _save_operands(ctx, inputs, output):
    """Keeps each operand only if the other one's gradient asks for it, and their precision."""
    first, second, *_, ctx.precision = inputs
    needs_first, needs_second = ctx.needs_input_grad[:2]
    ctx.save_for_backward(first if needs_second else None, second if needs_first else None)


@fast_apply("matmul")
class MatmulFn(torch.autograd.Function):
    """c = a b."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save_operands)

    @staticmethod
    def forward(a, b, precision, backward_precision):
        return _forward(a, b, precision)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = _matmul_backward_A(grad, b, ctx.precision) if ctx.needs_input_grad[0] else None
        grad_b = _matmul_backward_B(a, grad, ctx.precision) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b, None, None


@fast_apply("matmul")
class MatmulBackwardAFn(torch.autograd.Function):
    """grad_a = grad b^T."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save_operands)

    @staticmethod
    def forward(grad, b, precision):
        return _backward_A(grad, b, precision)

    @staticmethod
    def backward(ctx, cotangent):
        grad, b = ctx.saved_tensors
        needs_grad, needs_b, _ = ctx.needs_input_grad
        return (
            _matmul(cotangent, b, ctx.precision) if needs_grad else None,
            _matmul_backward_B(cotangent, grad, ctx.precision) if needs_b else None,
            None,
        )


@fast_apply("matmul")
class MatmulBackwardBFn(torch.autograd.Function):
    """grad_b = a^T grad."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save_operands)

    @staticmethod
    def forward(a, grad, precision):
        return _backward_B(a, grad, precision)

    @staticmethod
    def backward(ctx, cotangent):
        a, grad = ctx.saved_tensors
        needs_a, needs_grad, _ = ctx.needs_input_grad
        return (
            _matmul_backward_A(grad, cotangent, ctx.precision) if needs_a else None,
            _matmul(a, cotangent, ctx.precision) if needs_grad else None,
            None,
        )


def _check_operands(op, first_name, first, second_name, second, precision):
    check(precision in PRECISIONS, op, "precision", f"one of {PRECISIONS}", repr(precision))
    check_like(op, second_name, second, first_name, first, shape=False)
    supported = first.dtype in (torch.float32, torch.float64)
    check(supported, op, first_name, "dtype float32 or float64", first.dtype)
    check(first.dim() >= 1, op, first_name, "at least 1 dimension", first.shape)


def _check_contraction(op, first_name, first, second_name, second, second_dim):
    """The last dimension of `first` meets dimension `second_dim` of the matrix `second`."""
    check(second.dim() == 2, op, second_name, "2 dimensions", second.shape)
    expected = f"the last dimension of {first_name} ({first.shape[-1]}) as dimension {second_dim}"
    check(first.shape[-1] == second.shape[second_dim], op, second_name, expected, second.shape)


@torch.library.register_fake("my_ops::matmul_forward")
def _forward_fake(A, B, precision):
    _check_operands("matmul", "a", A, "b", B, precision)
    _check_contraction("matmul", "a", A, "b", B, 0)
    return A.new_empty((*A.shape[:-1], B.shape[1]))


@torch.library.register_fake("my_ops::matmul_backward_A")
def _(grad, B, precision):
    _check_operands("matmul_backward_A", "grad", grad, "b", B, precision)
    _check_contraction("matmul_backward_A", "grad", grad, "b", B, 1)
    return grad.new_empty((*grad.shape[:-1], B.shape[0]))


@torch.library.register_fake("my_ops::matmul_backward_B")
def _(A, grad, precision):
    _check_operands("matmul_backward_B", "a", A, "grad", grad, precision)
    check_like("matmul_backward_B", "grad", grad[..., :0], "a", A[..., :0])
    return A.new_empty((A.shape[-1], grad.shape[-1]))


def _register_vmap(name: str, rows_first: bool):
    """A batch of rows with one matrix is one product; where the matrix is mapped, one for each."""
    op = raw_operator(name)

    def rule(info, in_dims, left, right, precision):
        if rows_first and in_dims[1] is None:
            return op(left.movedim(in_dims[0], 0), right, precision), 0
        return map_each(op, info, in_dims, left, right, precision)

    torch.library.register_vmap(f"my_ops::{name}", rule)


_register_vmap("matmul_forward", rows_first=True)
_register_vmap("matmul_backward_A", rows_first=True)
_register_vmap("matmul_backward_B", rows_first=False)


# torch.ops.my_ops.matmul: the same operator by name, differentiable, for graphs and exports.
@torch.library.custom_op("my_ops::matmul", mutates_args=())
def _named(a: Tensor, b: Tensor, precision: str) -> Tensor:
    refuse_forward_mode("matmul")
    return _forward(a, b, precision)


_named.register_fake(_forward_fake)
for _device in ("cpu", "cuda"):
    _named.register_autocast(_device, torch.float32)
_named.register_autograd(
    lambda ctx, grad: MatmulFn.backward(ctx, grad)[:3], setup_context=_save_operands
)
