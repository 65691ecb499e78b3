"""my_ops.fp4_swizzle_scales and fp4_unswizzle_scales: the layout that Blackwell's matmuls read."""

import numbers

import torch
from torch import Tensor

from my_ops._errors import raise_expected
from my_ops._fp4_scales import SCALE_DTYPE
from my_ops.fp4_tensor import FP4Tensor

_DTYPES = (torch.uint8, torch.float8_e4m3fn, torch.float8_e8m0fnu)


def fp4_swizzle_scales(scale: Tensor) -> Tensor:
    """Block scales in tiles of 128 rows and 4 blocks, for cuBLASLt and tcgen05 (SWIZZLE_32_4_4).

    Args:
        scale: ``[R, C]``, an FP4Tensor's ``scale`` (or the FP4Tensor, a matrix), or its bytes.

    Returns:
        ``[ceil(R / 128) * 128 * ceil(C / 4) * 4]``, dense, of the same dtype; what pads R and C is
        zero. The scale of (r, c) lies at ``512 * (r // 128 * ceil(C / 4) + c // 4) + 16 * (r % 32)
        + 4 * (r % 128 // 32) + c % 4``: the "1D block scaling factors layout" of cuBLAS's manual.

    Raises:
        RuntimeError: for another dtype or number of dimensions.
    """
    scale_bytes, dtype = _checked("fp4_swizzle_scales", scale)
    rows, columns = scale_bytes.shape
    padded = scale_bytes.new_zeros((_up(rows, 128), _up(columns, 4)))
    padded[:rows, :columns] = scale_bytes
    tiles = padded.unflatten(0, (-1, 4, 32)).unflatten(-1, (-1, 4))
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(dtype)


def fp4_unswizzle_scales(swizzled: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of :func:`fp4_swizzle_scales`.

    Args:
        swizzled: what it returned, in any shape.
        rows: R of the scales that it was given.
        columns: C of them.

    Returns:
        The scales ``[rows, columns]``, without the padding, of the same dtype.

    Raises:
        RuntimeError: for another dtype, or a number of scales that is not that of R and C.
    """
    op = "fp4_unswizzle_scales"
    for name, size in ("rows", rows), ("columns", columns):
        if not isinstance(size, numbers.Integral | torch.SymInt) or size < 0:
            raise_expected(op, name, "a size", repr(size))
    size = _up(rows, 128) * _up(columns, 4)
    expected = f"{size} scales, those of {rows} by {columns} blocks"
    if not isinstance(swizzled, Tensor):
        raise_expected(op, "swizzled", expected, type(swizzled).__name__)
    if swizzled.dtype not in _DTYPES or swizzled.numel() != size:
        raise_expected(op, "swizzled", expected, f"{swizzled.numel()} of {swizzled.dtype}")
    tiles = swizzled.reshape(-1).view(torch.uint8)
    tiles = tiles.reshape(_up(rows, 128) // 128, _up(columns, 4) // 4, 32, 4, 4)
    padded = tiles.permute(0, 3, 2, 1, 4).flatten(-2).flatten(0, 2)
    return padded[:rows, :columns].contiguous().view(swizzled.dtype)


def _up(size, multiple):
    return (size + multiple - 1) // multiple * multiple


def _checked(function, scale):
    """The bytes of the scales, and their dtype."""
    dtype = None
    if isinstance(scale, FP4Tensor):  # not its `scale`: Dynamo cannot view one made in its graph
        scale, dtype = scale.scale_bytes, SCALE_DTYPE[scale.format]
    expected = "a matrix of uint8, float8_e4m3fn or float8_e8m0fnu"
    if not isinstance(scale, Tensor):
        raise_expected(function, "scale", expected, type(scale).__name__)
    if scale.dim() != 2 or scale.dtype not in _DTYPES:
        raise_expected(function, "scale", expected, f"{scale.dim()} dimensions of {scale.dtype}")
    return scale.view(torch.uint8), dtype or scale.dtype
