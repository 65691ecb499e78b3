"""The gradients of my_ops.rmsnorm: the fakes and vmap rules of its operators."""

import functools

import torch

from my_ops.ops._function import (
    batch_first,
    check,
    check_like,
    map_each,
    raw_operator,
)

_backward = raw_operator("rmsnorm_backward")
_backward_x = raw_operator("rmsnorm_backward_x")
_backward_weight = raw_operator("rmsnorm_backward_weight")


def gradients(want_x, want_weight, grad, x, weight, eps):
    """Those of the named operator, None where not wanted."""
    numbers = eps, 0.0
    if want_x and want_weight:
        return _backward(grad, None, x, weight, *numbers)
    if want_x:
        return _backward_x(grad, None, x, weight, *numbers), None
    if want_weight:
        return None, _backward_weight(grad, x, weight, *numbers)
    return None, None


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_operands(op, x, weight, grad=None, grad_sum=None):
    """The checks of the fakes: those of rmsnorm_checks.h."""
    check(x.dtype in _DTYPES, op, "x", "float16, bfloat16, float32 or float64", x.dtype)
    check(x.dim() >= 1, op, "x", "at least one dimension", "a scalar")
    check_like(op, "grad", grad, "x", x, dtype=False)
    check_like(op, "grad_sum", grad_sum, "x", x)
    if weight is not None:
        check_like(op, "weight", weight, "x", x, dtype=False, shape=False)
        shape = f"the shape of x's last dimension ([{x.shape[-1]}])"
        check(weight.dim() == 1, op, "weight", shape, weight.shape)
        check(weight.shape[0] == x.shape[-1], op, "weight", shape, weight.shape)
        narrow = weight.dtype in _DTYPES[:3] or weight.dtype == x.dtype
        check(narrow, op, "weight", "a dtype no wider than that of x, or float32", weight.dtype)


@torch.library.register_fake("my_ops::rmsnorm_backward")
def _(grad, grad_sum, x, weight, eps, weight_offset):
    check_operands("rmsnorm_backward", x, weight, grad, grad_sum)
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


@torch.library.register_fake("my_ops::rmsnorm_backward_x")
def _(grad, grad_sum, x, weight, eps, weight_offset):
    check_operands("rmsnorm_backward_x", x, weight, grad, grad_sum)
    return x.new_empty(x.shape)


@torch.library.register_fake("my_ops::rmsnorm_backward_weight")
def _(grad, x, weight, eps, weight_offset):
    check_operands("rmsnorm_backward_weight", x, weight, grad)
    return weight.new_empty(weight.shape)


def register_row_vmap(name, row_arguments, outputs=1):
    """A mapped dimension means more rows, unless the weight, which follows them, is mapped too."""
    op = raw_operator(name)

    def rule(info, in_dims, *args):
        n = row_arguments
        if in_dims[n] is not None:
            return map_each(op, info, in_dims, *args)
        rows = batch_first(info, in_dims[:n], *args[:n])
        return op(*rows, *args[n:]), (0,) * outputs if outputs > 1 else 0

    torch.library.register_vmap(f"my_ops::{name}", rule)


register_row_vmap("rmsnorm_backward_x", row_arguments=3)
for _name in ("rmsnorm_backward", "rmsnorm_backward_weight"):  # a gradient of the weight each
    torch.library.register_vmap(
        f"my_ops::{_name}", functools.partial(map_each, raw_operator(_name))
    )
