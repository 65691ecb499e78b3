"""The scales of FP4 in PyTorch's own operations: what a kernel does with them, and their layouts.

Every float32 step is the kernels' (notes in csrc/common/fp4.h), so the numbers are the same bits.
"""

import torch
from torch import Tensor

BLOCK_SIZE = {"nvfp4": 16, "mxfp4": 32}
SCALE_DTYPE = {"nvfp4": torch.float8_e4m3fn, "mxfp4": torch.float8_e8m0fnu}
_LARGEST = torch.finfo(torch.float32).max


def tensor_scales(amax: Tensor) -> tuple[Tensor, Tensor]:
    """(S, 1 / S) with S = 2688 / amax: NVFP4's tensor scale on the encode and the decode side."""
    usable = (amax != 0) & (amax != torch.inf)
    # 2688 / amax with a Python number is a reciprocal and a product, rounded twice.
    encode = (torch.full_like(amax, 2688) / amax).clamp(max=_LARGEST)
    encode = torch.where(usable, encode, 1)
    return encode, torch.ones_like(encode) / encode


def block_multipliers(scale_bytes: Tensor, amax: Tensor | None, format: str) -> Tensor:
    """What elements are multiplied by before they become codes; NaN in a block that holds one."""
    if format == "mxfp4":
        bits = (254 - scale_bytes.int()) << 23
        return bits.view(torch.float32).masked_fill(scale_bytes == 0xFF, torch.nan)
    scale = scale_bytes.view(SCALE_DTYPE[format]).float()
    if amax is not None:
        scale = scale * tensor_scales(amax)[1]
    multipliers = (torch.ones_like(scale) / scale).clamp(max=_LARGEST)
    return multipliers.masked_fill(scale_bytes == 0, 0)


def scaled_magnitudes(x: Tensor, scale_bytes: Tensor, amax: Tensor | None, format: str) -> Tensor:
    """|x| as the encoder rounds it to a code: above 6 it is clipped."""
    multipliers = block_multipliers(scale_bytes, amax, format)
    multipliers = multipliers.repeat_interleave(BLOCK_SIZE[format], -1)[..., : x.shape[-1]]
    return x.float().abs() * multipliers
