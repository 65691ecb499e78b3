"""FP4Tensors to and from checkpoints: compressed-tensors (vLLM) and ModelOpt (TensorRT-LLM).

Both keep the same codes and block scales and differ in NVFP4's tensor scale: compressed-tensors
stores what weights are multiplied by, S = 2688 / amax, ModelOpt what codes are, 1 / S. Mixing the
two up gives silent garbage, so each layout says which side it means.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from my_ops._errors import raise_expected
from my_ops._fp4_scales import tensor_scales


class Layout(NamedTuple):
    """How a checkpoint names the parts of a weight, and its tensor scale, which MXFP4 has not."""

    name: str
    packed: str
    tensor_scale: str
    side: int  # of the tensor scale: 0 encode, S; 1 decode, 1 / S
    shape: tuple[int, ...]  # of its one element
    scale: str = "weight_scale"


COMPRESSED_TENSORS = Layout(
    "compressed_tensors", "weight_packed", "weight_global_scale", side=0, shape=(1,)
)
MODELOPT = Layout("modelopt", "weight", "weight_scale_2", side=1, shape=())


def store(layout: Layout, q) -> dict[str, Tensor]:
    """The parts of the FP4Tensor `q` under the names of the layout."""
    if q.transposed or q.K % 2:
        raise RuntimeError(
            f"my_ops.FP4Tensor.to_{layout.name}: expected rows of an even number of elements, got "
            f"{'a transposed tensor' if q.transposed else q.K}"
        )
    if q.format == "mxfp4":
        return {layout.packed: q.packed, layout.scale: q.scale_bytes}
    tensor_scale = _scales(q)[layout.side].reshape(layout.shape)
    return {layout.packed: q.packed, layout.scale: q.scale, layout.tensor_scale: tensor_scale}


def load(
    layout: Layout, tensors: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None, str, int]:
    """packed, scale bytes, amax, format, K."""
    for name in (layout.packed, layout.scale):
        if not isinstance(tensors.get(name), Tensor):
            op, got = f"FP4Tensor.from_{layout.name}", type(tensors.get(name)).__name__
            raise_expected(op, f"tensors['{name}']", "a tensor", got)
    packed, scale_bytes = tensors[layout.packed], tensors[layout.scale].view(torch.uint8)
    K = 2 * packed.shape[-1]
    if layout.tensor_scale not in tensors:
        return packed, scale_bytes, None, "mxfp4", K
    amax = _amax_with(tensors[layout.tensor_scale], layout.side)
    return packed, scale_bytes, amax, "nvfp4", K


def _scales(q):
    """S and 1 / S, one element each; 1 with one level."""
    if q.amax is None:
        return (torch.ones(1, device=q.device),) * 2
    return tensor_scales(q.amax.reshape(1))


def _amax_with(scale: Tensor, side: int) -> Tensor:
    """An amax whose S (side 0) or 1 / S (side 1) is `scale`, or its neighbour where none is."""
    scale = scale.detach().reshape(1).float()
    guess = 2688 / scale if side == 0 else 2688 * scale
    candidates = (guess.view(torch.int32) + torch.arange(-4, 5, device=scale.device)).clamp(min=0)
    candidates = candidates.view(torch.float32)
    distance = (tensor_scales(candidates)[side] - scale).abs()
    return candidates[distance.argmin()].clone()
