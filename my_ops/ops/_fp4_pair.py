"""fp4_matmul of two dense operands and its gradients, by one operator each: when it is called, and
their fakes."""

import torch
from torch import Tensor
from torch.nn import Parameter

from my_ops._fp4_scales import BLOCK_SIZE
from my_ops.ops._fp4_checks import (
    blocks,
    check_columns,
    check_dense,
    check_dtype_name,
    check_matrix,
    check_name,
    check_packed,
    check_shape,
)
from my_ops.ops._function import check, transforms_are_active


def is_pair(a: Tensor, b: Tensor) -> bool:
    """Whether one operator takes both: plain tensors, which nothing but their Function looks at.

    Transforms, compiled graphs and subclasses (DTensor) see an operator for each step.
    """
    plain = type(a) in (Tensor, Parameter) and type(b) in (Tensor, Parameter)
    return plain and not transforms_are_active() and not torch.compiler.is_compiling()


@torch.library.register_fake("my_ops::fp4_matmul_pair_forward")
def _(a, b, format, dtype):
    op = "fp4_matmul"
    check_name(op, "format", format, BLOCK_SIZE)
    check_dtype_name(op, dtype)
    check_dense(op, "a", a, "a", a)
    check_dense(op, "b", b, "a", a)
    check(a.dim() > 0, op, "a", "at least one dimension", "a tensor without dimensions")
    check(b.dim() == 2, op, "b", "two dimensions", b.dim())
    check(b.shape[0] == a.shape[-1], op, "b", f"the shape [{a.shape[-1]}, N]", list(b.shape))
    y = a.new_empty((*a.shape[:-1], b.shape[1]), dtype=getattr(torch, dtype))
    return y, *_empty_part(a, format), *_empty_part(b.t(), format)


def _empty_part(x, format):
    *leading, K = x.shape
    parts = [
        x.new_empty((*leading, blocks(K, size)), dtype=torch.uint8)
        for size in (2, BLOCK_SIZE[format])
    ]
    return *parts, x.new_empty(() if format == "nvfp4" else (0,), dtype=torch.float32)


@torch.library.register_fake("my_ops::fp4_matmul_pair_backward")
def _(
    grad, a_packed, a_scale, a_amax, a_shape, a_transposed,
    b_packed, b_scale, b_amax, b_shape, b_transposed, format, a_dtype, b_dtype,
):  # fmt: skip
    op = "fp4_matmul_pair_backward"
    for dtype in a_dtype, b_dtype:
        check_dtype_name(op, dtype)
    check_dense(op, "grad", grad, "b_packed", b_packed)
    check_matrix(op, "b_", b_packed, b_scale, b_amax, b_shape, b_transposed, format)
    check_columns(op, "grad", grad, "b", b_shape[1])
    check_dense(op, "grad", grad, "a_packed", a_packed)
    check_packed(op, "a_", a_packed, a_scale, a_amax, a_shape, a_transposed, format)
    check_shape(op, "grad", grad, (*a_shape[:-1], *grad.shape[-1:]))
    return (
        grad.new_empty((*grad.shape[:-1], b_shape[0]), dtype=getattr(torch, a_dtype)),
        grad.new_empty((a_shape[-1], grad.shape[-1]), dtype=getattr(torch, b_dtype)),
    )
