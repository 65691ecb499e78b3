"""The gradients of my_ops.rmsnorm: RMSNormBackwardFn, the fakes and vmap rules of its operators."""

import functools

import torch

from my_ops.ops._function import (
    batch_first,
    check,
    check_like,
    fast_apply,
    map_each,
    needs_function,
    raw_operator,
)

_backward = raw_operator("rmsnorm_backward")
_backward_x = raw_operator("rmsnorm_backward_x")
_backward_weight = raw_operator("rmsnorm_backward_weight")


def gradients(wanted, grad, grad_sum, x, weight, eps, weight_offset):
    """grad_x and grad_weight, None where `wanted` is False."""
    function = RMSNormBackwardFn.apply
    if not needs_function(grad, grad_sum, x, weight):
        function = RMSNormBackwardFn.forward
    if all(wanted):
        return function(*wanted, grad, grad_sum, x, weight, eps, weight_offset)
    if not any(wanted):
        return None, None
    result = function(*wanted, grad, grad_sum, x, weight, eps, weight_offset)
    return (result, None) if wanted[0] else (None, result)


@fast_apply
class RMSNormBackwardFn(torch.autograd.Function):
    """The wanted gradients of rmsnorm, differentiable through ordinary PyTorch formulas."""

    generate_vmap_rule = True

    @staticmethod
    def forward(want_x, want_weight, grad, grad_sum, x, weight, eps, weight_offset):
        if not want_weight:
            return _backward_x(grad, grad_sum, x, weight, eps, weight_offset)
        if not want_x:
            return _backward_weight(grad, x, weight, eps, weight_offset)
        return _backward(grad, grad_sum, x, weight, eps, weight_offset)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.want_x, ctx.want_weight, grad, grad_sum, x, weight, ctx.eps, ctx.weight_offset = inputs
        ctx.has_grad_sum = grad_sum is not None
        ctx.save_for_backward(grad, x, weight)

    @staticmethod
    def backward(ctx, *cotangents):
        # With n = rstd and a = grad * w: grad_x = n a - n^3 x mean(a x), whose cotangent is u, and
        # grad_weight = sum of n grad x, whose cotangent is v.
        tensors = ctx.saved_tensors
        wide = torch.float64 if tensors[1].dtype == torch.float64 else torch.float32
        grad, x, weight = (None if t is None else t.to(wide) for t in tensors)
        w = 1.0 if weight is None else weight + ctx.weight_offset
        eps = torch.finfo(wide).eps if ctx.eps is None else ctx.eps
        n = torch.rsqrt(_mean(x.square()) + eps)
        to_grad, to_x, to_weight = 0.0, 0.0, None
        if ctx.want_x:
            u = cotangents[0].to(wide)
            a = grad * w
            mean_ax, mean_ux = _mean(a * x), _mean(u * x)
            to_a = n * u - n**3 * x * mean_ux
            to_grad = to_a * w
            to_x = n**3 * (
                (3 * n**2 * mean_ax * mean_ux - _mean(a * u)) * x - u * mean_ax - a * mean_ux
            )
            if weight is not None:
                to_weight = (to_a * grad).sum_to_size(weight.shape).to(tensors[2].dtype)
        if ctx.want_weight:
            v = cotangents[-1].to(wide)
            to_grad = to_grad + n * v * x
            to_x = to_x + n * v * grad - n**3 * x * _mean(v * grad * x)
        to_sum = cotangents[0] if ctx.want_x and ctx.has_grad_sum else None
        to_grad, to_x = to_grad.to(tensors[0].dtype), to_x.to(tensors[1].dtype)
        return None, None, to_grad, to_sum, to_x, to_weight, None, None


def _mean(rows):
    return rows.mean(-1, keepdim=True)


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
