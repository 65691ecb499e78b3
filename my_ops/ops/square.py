"""my_ops.square: y = x * x. Public functions, fakes, rules for vmap, the named operator.

The derivatives are in csrc/square/square.cpp.
"""

import torch
from torch import Tensor

from my_ops._errors import expected_message
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._function import (
    batch_first,
    check,
    check_like,
    needs_function,
    raw_operator,
    refuse_forward_mode,
)

_forward = raw_operator("square_forward")
_inplace = raw_operator("square_inplace")
_backward = raw_operator("square_backward")


def square(x: Tensor) -> Tensor:
    """Returns ``x * x``, elementwise, as :func:`torch.square` does.

    Args:
        x: any shape, any memory layout, on CPU or CUDA; every dtype that ``torch.square`` takes
            (8 to 64 bit integers, bool, float16, bfloat16, float32, float64, complex64,
            complex128).

    Returns:
        A new tensor with the shape and memory format of ``x`` and its dtype (int64 for bool).
        16-bit floats are squared in float32 and rounded once; integers wrap.

    Raises:
        RuntimeError: for another dtype, device or layout; the message names the argument.
        TypeError: for an ``x`` that is no tensor.

    The gradient is ``2 * grad * conj(x)``, rounded once; it can be differentiated again.
    """
    return _forward(x)


def square_(x: Tensor) -> Tensor:
    """Replaces ``x`` by ``x * x`` and returns it, as :meth:`torch.Tensor.square_` does.

    Args:
        x: as in :func:`square` but not bool, and not expanded. In other views whose elements
            share memory each value there is squared once.

    Returns:
        ``x`` itself.

    Raises:
        RuntimeError: for another dtype, device or layout, for an expanded ``x``, and for a leaf
            that needs a gradient; nothing is written then.
        TypeError: for an ``x`` that is no tensor.

    Where a gradient is recorded this costs two copies of ``x``, since autograd needs the old one.
    """
    squared = square(x.clone()) if needs_function(x) else None
    try:
        if squared is not None:
            return x.copy_(squared)
        _inplace(x)
    except RuntimeError as error:
        _refuse_write(x, str(error))
        raise
    return x


_TORCH_REFUSES = "leaf Variable", "inference tensor", "written-to tensor"


def _refuse_write(x: Tensor, error: str) -> None:
    """Names operator and argument where torch or FP4Tensor did not."""
    expected, got = "a tensor that can be written in place", f"one that torch refuses: {error}"
    if isinstance(x, FP4Tensor):
        expected, got = "a dense tensor", "a quantized one; call dequantize() first"
    elif not any(words in error for words in _TORCH_REFUSES):
        return
    raise RuntimeError(expected_message("square_", "x", expected, got)) from None


_DIFFERENTIABLE = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
}
_DTYPES = {
    *_DIFFERENTIABLE,
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


def _empty_like(x, dtype):
    """torch.empty_like of the kernels; of fakes it gives size-one dimensions other strides."""
    if torch.ops.aten.is_non_overlapping_and_dense(x):
        return x.new_empty_strided(x.shape, x.stride(), dtype=dtype)
    return torch.empty_like(x, dtype=dtype)


@torch.library.register_fake("my_ops::square_forward")
def _forward_fake(x):
    check(x.dtype in _DTYPES | {torch.bool}, "square", "x", f"one of {_DTYPES}", x.dtype)
    return _empty_like(x, torch.int64 if x.dtype == torch.bool else x.dtype)


@torch.library.register_fake("my_ops::square_inplace")
def _(x):
    check(x.dtype in _DTYPES, "square_", "x", f"one of {_DTYPES}", x.dtype)


@torch.library.register_fake("my_ops::square_backward")
def _(grad, x):
    check(x.dtype in _DIFFERENTIABLE, "square_backward", "x", f"one of {_DIFFERENTIABLE}", x.dtype)
    check_like("square_backward", "grad", grad, "x", x)
    return _empty_like(x, x.dtype)


@torch.library.register_vmap("my_ops::square_forward")
def _(info, in_dims, x):
    return _forward(x), in_dims[0]


@torch.library.register_vmap("my_ops::square_backward")
def _(info, in_dims, grad, x):
    return _backward(*batch_first(info, in_dims, grad, x)), 0


# torch.ops.my_ops.square: the same operator by name, differentiable, for graphs and exports.
@torch.library.custom_op("my_ops::square", mutates_args=())
def _named(x: Tensor) -> Tensor:
    refuse_forward_mode("square")
    return _forward(x)


_named.register_fake(_forward_fake)
_named.register_autograd(
    lambda ctx, grad: _backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
