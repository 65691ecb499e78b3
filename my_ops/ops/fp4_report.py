"""my_ops.fp4_report: what quantizing a tensor to FP4 loses, and why."""

from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from my_ops._errors import raise_expected
from my_ops._fp4_scales import BLOCK_SIZE, scaled_magnitudes
from my_ops.ops._fp4_checks import check_tensor
from my_ops.ops.fp4 import fp4_quantize

_OPTIONS = signature(fp4_quantize).parameters.keys()


class FP4Report(NamedTuple):
    """What :func:`my_ops.fp4_report` returns. Shares lie in 0 to 1.

    Attributes:
        zero_codes: elements that are not zero and become zero.
        clipped: elements beyond the largest code of their block, which they become.
        underflowed_blocks: blocks that are not zero and become zero as a whole.
        sqnr_db: signal to quantization noise, 10 log10(sum x^2 / sum (x - q)^2): about 20 for
            NVFP4 and 19 for MXFP4 on normal data. Inf where nothing is lost. NaN with a NaN or an
            Inf in x, which counts as clipped in NVFP4; a block of NaN counts in no share.
    """

    zero_codes: float
    clipped: float
    underflowed_blocks: float
    sqnr_db: float


def fp4_report(x: Tensor, format: str = "nvfp4", **options) -> FP4Report:
    """Quantizes ``x`` and counts what is lost. It waits for the device: a tool, not for training.

    Args:
        x: as :func:`my_ops.fp4_quantize` takes it.
        format: ``"nvfp4"`` or ``"mxfp4"``.
        options: the other arguments of ``fp4_quantize``, except ``axis``.

    Returns:
        An :class:`~my_ops.ops.fp4_report.FP4Report`, four numbers: shares of elements
        and of blocks, and decibels.

    Raises:
        RuntimeError: what ``fp4_quantize`` raises, and for an ``axis``.
        TypeError: for an option that ``fp4_quantize`` does not have.

    Example:
        >>> my_ops.fp4_report(layer.weight).sqnr_db
    """
    check_tensor("fp4_report", "x", x)
    if "axis" in options:
        expected = "no axis (blocks lie along the last dimension of x; pass x.t())"
        raise_expected("fp4_report", "axis", expected, options["axis"])
    for name in options.keys() - _OPTIONS:
        raise TypeError(f"my_ops.fp4_report: {name}: expected an option of fp4_quantize")
    x = x.detach()
    q = fp4_quantize(x, format, **options)
    if x.numel() == 0:
        return FP4Report(0.0, 0.0, 0.0, float("inf"))
    y = q.dequantize(torch.float32)
    lost = (x != 0) & (y == 0)
    kept_blocks = _any_in_block((x != 0) & ~lost, format)
    underflowed = _any_in_block(lost, format) & ~kept_blocks
    clipped = scaled_magnitudes(x, q.scale_bytes, q.amax, format) > 6
    exact = x.double()
    noise = (y - exact).square().sum()
    sqnr_db = 10 * (exact.square().sum() / noise).log10().masked_fill(noise == 0, torch.inf)
    counted = lost, clipped, underflowed, sqnr_db  # the mean of one number is the number
    return FP4Report(*(mask.double().mean().item() for mask in counted))


def _any_in_block(mask, format):
    padded = pad(mask, (0, -mask.shape[-1] % BLOCK_SIZE[format]))
    return padded.unflatten(-1, (-1, BLOCK_SIZE[format])).any(-1)
