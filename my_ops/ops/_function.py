"""What every operator's autograd.Function shares: when it is needed, and a cheap `apply`."""

import inspect

import torch
from torch import Tensor


def needs_function(*tensors: Tensor | None) -> bool:
    """Whether a call has to go through the autograd.Function, or can go straight to the kernel.

    Under functorch transforms (grad, vmap, jvp) `requires_grad` does not tell: inside grad(vmap(f))
    it is False for tensors that are differentiated, and skipping the Function would give zeros.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


class _Arguments:
    """As much of inspect.BoundArguments as `Function.apply` reads (torch 2.14: kwargs too)."""

    def __init__(self, args):
        self.args = args
        self.kwargs = {}

    def apply_defaults(self):
        pass


class _PositionalSignature(inspect.Signature):
    def bind(self, *args):
        return _Arguments(args)


def fast_apply(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Class decorator: `apply` takes all arguments, by position.

    `Function.apply` binds its arguments to the signature of `forward` on each call, to fill in
    defaults. That costs 8 of its 17 us; a signature that takes the arguments as they come has
    nothing to fill in.
    """
    signature = inspect.signature(function.forward)
    function.forward.__signature__ = _PositionalSignature(list(signature.parameters.values()))
    return function


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
