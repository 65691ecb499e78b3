"""fp4_matmul of two dense operands by one operator: when it is called, and its fake."""

import torch
from torch import Tensor
from torch.nn import Parameter

from my_ops._fp4_scales import BLOCK_SIZE
from my_ops.ops._fp4_checks import DTYPE_NAMES, blocks, check_dense, check_name
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
    check_name(op, "dtype", dtype, DTYPE_NAMES.values())
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
