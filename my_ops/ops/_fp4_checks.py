"""The checks of the FP4 operators in Python: of names and types, and what their fakes check."""

import numbers
import operator
from functools import partial

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from my_ops._dense import DTYPE_NAMES, FP4_DTYPES
from my_ops._errors import raise_expected
from my_ops._fp4_scales import BLOCK_SIZE
from my_ops.ops._function import (
    check,
    check_dense_layout,
    check_device,
    check_sizes,
    forward_mode_is_active,
)

SCALE_MODES = "floor", "rceil", "ceil", "even"
_FORMATS = "'nvfp4' or 'mxfp4'"


def check_format(op: str, format) -> None:
    if not isinstance(format, str) or format not in BLOCK_SIZE:
        raise_expected(op, "format", _FORMATS, repr(format))


def check_tensor(op: str, argument: str, x) -> None:
    if not isinstance(x, Tensor):
        raise_expected(op, argument, "a tensor", type(x).__name__)
    if x.dtype not in FP4_DTYPES or x.layout != torch.strided or x.is_nested:
        check_dense_layout(op, argument, x)
        raise_expected(op, argument, "float32, float16 or bfloat16", x.dtype)


def is_first_axis(axis, dims: int) -> bool:
    """Whether fp4_quantize's `axis` is the first of a matrix, else the last of `dims`."""
    try:
        axis = operator.index(axis)
    except TypeError:
        axis = repr(axis)
    if axis in (-1, dims - 1):
        return False
    if dims == 2 and axis in (0, -2):
        return True
    expected = "the last dimension of x, or 0 for a matrix"
    raise_expected("fp4_quantize", "axis", expected, f"{axis} for {dims} dimensions")


def signed_seed(seed, op: str = "fp4_quantize") -> int:
    """The 64 bits of `seed` as the schema's signed integer."""
    if type(seed) is int and 0 <= seed < 2**63:  # the usual one, 0.4 us before the other checks
        return seed
    integral = isinstance(seed, numbers.Integral)
    if not integral or not -(2**63) <= seed < 2**64:
        raise_expected(op, "seed", "an integer from -2**63 below 2**64", repr(seed))
    seed = int(seed)
    return seed - 2**64 if seed >= 2**63 else seed


def check_amax_number(op: str, amax) -> None:
    expected: str
    got: object
    real = isinstance(amax, numbers.Real)
    if not real:
        expected, got = "a tensor or a number", type(amax).__name__
    elif not amax >= 0:
        expected, got = "a number from 0 on", amax
    elif torch.finfo(torch.float32).max < amax < float("inf"):
        expected, got = "a number that float32 can hold", amax
    else:
        return
    raise_expected(op, "amax", expected, got)


def given_amax(op: str, amax, x: Tensor, format: str, two_level: bool) -> Tensor:
    """The `amax` that a caller gives, as a tensor."""
    refuse = partial(raise_expected, op, "amax")
    if format == "mxfp4":
        refuse("None (the format 'mxfp4' has no tensor scale)", amax)
    if not two_level:
        refuse("None with two_level=False", amax)
    if isinstance(amax, Tensor):
        if forward_mode_is_active() and forward_ad.unpack_dual(amax).tangent is not None:
            refuse("a tensor without a tangent, which quantizing does not carry", "a dual tensor")
        # A copy: the FP4Tensor owns it, whatever becomes of the caller's.
        amax = (amax.detach() if amax.requires_grad else amax).clone()
        try:
            return amax.view(()) if amax.dim() > 0 and amax.numel() == 1 else amax
        except RuntimeError:
            check_dense_layout(op, "amax", amax)
            raise
    check_amax_number(op, amax)
    return torch.full((), float(amax), dtype=torch.float32, device=x.device)


# ---- For fakes: what the C++ operators check. Symbolic sizes are checked when they run. ----


def check_name(op: str, argument: str, name: str, names) -> None:
    *first, last = (f"'{n}'" for n in names)
    check(name in names, op, argument, f"{', '.join(first)} or {last}", f"'{name}'")


def check_dtype_name(op: str, name: str) -> None:
    check_name(op, "dtype", name, [DTYPE_NAMES[dtype] for dtype in FP4_DTYPES])


def check_shape(op: str, argument: str, tensor: Tensor, shape) -> None:
    check_sizes(op, argument, list(tensor.shape), shape, f"the shape {list(shape)}")


def check_x(op: str, x: Tensor) -> None:
    check(x.dtype in FP4_DTYPES, op, "x", "float32, float16 or bfloat16", x.dtype)
    check(x.dim() > 0, op, "x", "at least one dimension", "a tensor without dimensions")


def check_dense(op: str, argument: str, x: Tensor, like_name: str, like: Tensor) -> None:
    check_device(op, argument, x, like_name, like)
    check(x.dtype in FP4_DTYPES, op, argument, "float32, float16 or bfloat16", x.dtype)


def check_amax(op, argument, amax, format, like_name, like) -> None:
    if amax is not None:
        nvfp4 = format == "nvfp4"
        check(nvfp4, op, argument, "None (the format 'mxfp4' has no tensor scale)", "a tensor")
        check_device(op, argument, amax, like_name, like)
        one = amax.dtype == torch.float32 and amax.numel() == 1
        check(one, op, argument, "one float32 element", f"{amax.numel()} of {amax.dtype}")


def check_packed(op, prefix, packed, scale, amax, shape, transposed, format) -> None:
    """The parts of one FP4 operand of the logical `shape`: "<prefix>packed" and so on."""
    check_name(op, "format", format, BLOCK_SIZE)
    if transposed:
        check(len(shape) == 2, op, f"{prefix}shape", "two dimensions", list(shape))
        shape = shape[::-1]
    check(len(shape) >= 1, op, f"{prefix}shape", "at least one dimension", list(shape))
    for part, tensor, of in ("packed", packed, 2), ("scale", scale, BLOCK_SIZE[format]):
        check_device(op, prefix + part, tensor, f"{prefix}packed", packed)
        check(tensor.dtype == torch.uint8, op, prefix + part, "uint8", tensor.dtype)
        check_shape(op, prefix + part, tensor, [*shape[:-1], blocks(shape[-1], of)])
    check_amax(op, f"{prefix}amax", amax, format, f"{prefix}packed", packed)


def check_matrix(op, prefix, packed, scale, amax, shape, transposed, format) -> None:
    check(len(shape) == 2, op, f"{prefix}shape", "two dimensions", list(shape))
    check_packed(op, prefix, packed, scale, amax, shape, transposed, format)


def check_columns(op: str, argument: str, x: Tensor, of: str, columns) -> None:
    expected = f"as many columns as {of} has ({columns})"
    check(x.dim() >= 1, op, argument, expected, list(x.shape))
    check(x.shape[-1] == columns, op, argument, expected, list(x.shape))


def blocks(K, block):
    return (K + block - 1) // block
