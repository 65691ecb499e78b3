"""What every operator's autograd.Function shares: when it is needed, and a cheap `apply`."""

from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from my_ops import _C
from my_ops._errors import expected_message, raise_wrong_type

_dynamo_is_tracing = torch.compiler.is_dynamo_compiling


def raw_operator(name: str):
    """The operator `torch.ops.my_ops.<name>`, called with less Python in between.

    `torch.ops.my_ops.<name>.default` boxes its arguments and costs 1 us more than the function of
    `_C.ops`, which hands them to the same dispatcher as they are. Dynamo cannot look into that.
    """
    overload = getattr(torch.ops.my_ops, name).default
    function = getattr(_C.ops, name)
    # What users call: square_inplace is square_.
    op = name.removesuffix("_forward").removesuffix("_two_level").replace("_inplace", "_")

    def call(*args):
        if _dynamo_is_tracing():
            return overload(*args)
        try:
            return function(*args)
        except NotImplementedError as error:
            if "expected no forward-mode" in str(error):
                raise NotImplementedError(str(error).replace(name, op, 1)) from None
            # Of the dispatcher, which has no kernel for such a tensor.
            for argument, value in zip(overload._schema.arguments, args, strict=True):
                if isinstance(value, Tensor):  # matmul's A is the function's a
                    check_dense_layout(op, argument.name.lower(), value)
            raise
        except TypeError as error:
            if "incompatible function arguments" not in str(error):
                raise
            raise_wrong_type(op, overload._schema, args)

    return call


def check_dense_layout(op: str, argument: str, tensor: Tensor) -> None:
    nested, quantized = tensor.is_nested, tensor.is_quantized
    kind = "nested" if nested else "quantized" if quantized else tensor.layout
    if kind != torch.strided:
        message = expected_message(op, argument, "a dense tensor", f"one that is {kind}")
        raise RuntimeError(message) from None


transforms_are_active = torch._C._are_functorch_transforms_active
_autocast_is_active = torch._C._is_any_autocast_enabled


def forward_mode_is_active() -> bool:
    return forward_ad._current_level >= 0 and not torch.compiler.is_compiling()


def refuse_forward_mode(op: str) -> None:
    """Raises in forward mode, where a torch.library.custom_op would return tangents of zero."""
    if forward_mode_is_active():
        raise RuntimeError(
            f"my_ops.{op}: expected no forward-mode differentiation, got a call of "
            f"torch.ops.my_ops.{op} under dual_level or jvp, which it has no rule for"
        )


def needs_function(*tensors: Tensor | None) -> bool:
    """Whether a call has to go through the autograd.Function, or can go straight to the kernel.

    Under functorch transforms (grad, vmap, jvp) and in forward mode `requires_grad` does not tell:
    inside grad(vmap(f)) it is False for tensors that are differentiated, and skipping the Function
    would give zeros.
    """
    if torch.is_grad_enabled():
        for tensor in tensors:  # not any(): its generator costs 0.2 us
            # Of None isinstance would take 0.1 us: it asks Tensor's metaclass.
            if tensor is not None and isinstance(tensor, Tensor) and tensor.requires_grad:
                return True
    return transforms_are_active() or forward_mode_is_active()


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype in which autocast multiplies where `x` is; None outside of it."""
    if not _autocast_is_active():  # at a sixth of what the rest costs
        return None
    device = x.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def fast_apply(op: str):
    """Class decorator of a Function of my_ops.<op>: `apply` at less than half the cost; it takes
    all arguments, by position.

    torch.func needs `forward` and `setup_context` apart. `Function.apply` pays for that on every
    call: it binds the arguments to the signature of `forward` and hands them on twice (9 us for
    square on a CPU, of which the operator takes 2). Where no transform is active, `apply` calls
    the same two as one `forward(ctx, ...)`, PyTorch's older and cheaper form (4.5 us).
    """
    return partial(_with_fast_apply, op)


def _with_fast_apply(
    op: str, function: type[torch.autograd.Function]
) -> type[torch.autograd.Function]:
    forward, setup_context = function.forward, function.setup_context

    def forward_with_context(ctx, *args):
        output = forward(*args)
        setup_context(ctx, args, output)
        return output

    eager: Any = type(
        function.__name__,
        (function,),
        {
            "__module__": function.__module__,
            "forward": staticmethod(forward_with_context),
            "setup_context": staticmethod(torch.autograd.Function.setup_context),
        },
    )
    # super(): what Function.apply calls once it has looked for transforms (2 us in torch 2.11).
    apply_transformed, apply_eager = function.apply, super(torch.autograd.Function, eager).apply

    def apply(*args):
        try:
            if transforms_are_active():
                return apply_transformed(*args)
            return apply_eager(*args)
        except NotImplementedError as error:
            if "jvp" not in str(error):
                raise
            raise NotImplementedError(
                f"my_ops.{op}: expected no forward-mode differentiation (jvp, dual_level), "
                "which it has no rule for; torch.func.grad and vmap it takes"
            ) from None

    function.apply = staticmethod(apply)
    return function


def distinct(*args):
    """A Function's arguments. torch.compile refuses a tensor given twice: it becomes an alias."""
    if not torch.compiler.is_compiling():
        return args
    seen, result = [], []
    for arg in args:
        if isinstance(arg, Tensor):
            again = any(arg is earlier for earlier in seen)
            seen.append(arg)
            arg = torch.ops.aten.alias.default(arg) if again else arg
        result.append(arg)
    return result


def check(condition, op: str, argument: str, expected: str, got) -> None:
    """For a fake: raises what the C++ operator would. Symbolic sizes are checked when they run."""
    if condition is not True:
        torch._check(condition, lambda: expected_message(op, argument, expected, got))


def check_device(op: str, argument: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    """For a fake: else a tensor on "meta" beside one with memory gives memory never written."""
    expected = f"the device of {like_name} ({like.device})"
    check(tensor.device == like.device, op, argument, expected, tensor.device)


def check_sizes(op: str, argument: str, own, wanted, expected: str) -> None:
    """For a fake: two shapes, of sizes that can be symbolic."""
    check(len(own) == len(wanted), op, argument, expected, own)
    for size, wanted_size in zip(own, wanted, strict=True):
        check(size == wanted_size, op, argument, expected, own)


def check_like(op, argument, tensor, like_name, like, *, dtype=True, shape=True) -> None:
    """For a fake: `tensor`, if there is one, has the device, dtype and shape of `like`."""
    if tensor is None:
        return
    check_device(op, argument, tensor, like_name, like)
    if dtype:
        expected = f"the dtype of {like_name} ({like.dtype})"
        check(tensor.dtype == like.dtype, op, argument, expected, tensor.dtype)
    if shape:
        expected = f"the shape of {like_name} ({like.shape})"
        check_sizes(op, argument, tensor.shape, like.shape, expected)


def batch_first(info, in_dims, *tensors: Tensor | None) -> list[Tensor | None]:
    """For a vmap rule: the tensors with the mapped dimension in front, expanded where absent."""
    return [
        t
        if t is None
        else t.expand(info.batch_size, *t.shape)
        if dim is None
        else t.movedim(dim, 0)
        for dim, t in zip(in_dims, tensors, strict=True)
    ]


def map_each(op, info, in_dims, *args):
    """A vmap rule that always works: one call for each element of the mapped dimension."""
    in_dims = [d if isinstance(d, int) else None for d in in_dims]  # a list of sizes has a list

    def element(i):
        return op(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))

    if info.batch_size == 0:  # the shapes of a call on zeros, none of them
        args = [
            a if d is None else a.new_zeros([1 if i == d else n for i, n in enumerate(a.shape)])
            for a, d in zip(args, in_dims, strict=True)
        ]
    calls = [element(i) for i in range(max(info.batch_size, 1))]
    if isinstance(calls[0], Tensor):
        return torch.stack(calls)[: info.batch_size], 0
    stacked = tuple(torch.stack(results)[: info.batch_size] for results in zip(*calls, strict=True))
    return stacked, (0,) * len(stacked)
