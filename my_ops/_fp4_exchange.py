"""FP4Tensors to and from checkpoints: compressed-tensors (vLLM) and ModelOpt (TensorRT-LLM).

Both keep the same codes and block scales and differ in NVFP4's tensor scale: compressed-tensors
stores what weights are multiplied by, S = 2688 / amax, ModelOpt what codes are, 1 / S. Mixing the
two up gives silent garbage, so each function says which side it means.
"""

import torch
from torch import Tensor

from my_ops._fp4_scales import tensor_scales


def to_compressed_tensors(q) -> dict[str, Tensor]:
    """`weight_packed`, `weight_scale` and, for NVFP4, `weight_global_scale` (encode side, S)."""
    _check_whole_bytes("to_compressed_tensors", q)
    if q.format == "mxfp4":
        return {"weight_packed": q.packed, "weight_scale": q.scale_bytes}
    encode, _ = _scales(q)
    return {"weight_packed": q.packed, "weight_scale": q.scale, "weight_global_scale": encode}


def from_compressed_tensors(tensors: dict[str, Tensor]):
    """packed, scale bytes, amax, format."""
    packed, scale = tensors["weight_packed"], tensors["weight_scale"]
    if "weight_global_scale" not in tensors:
        return packed, scale.view(torch.uint8), None, "mxfp4"
    amax = _amax_with(tensors["weight_global_scale"], side=0)
    return packed, scale.view(torch.uint8), amax, "nvfp4"


def to_modelopt(q) -> dict[str, Tensor]:
    """`weight`, `weight_scale` and, for NVFP4, `weight_scale_2` (decode side, 1 / S)."""
    _check_whole_bytes("to_modelopt", q)
    if q.format == "mxfp4":
        return {"weight": q.packed, "weight_scale": q.scale_bytes}
    _, decode = _scales(q)
    return {"weight": q.packed, "weight_scale": q.scale, "weight_scale_2": decode.reshape(())}


def from_modelopt(tensors: dict[str, Tensor]):
    """packed, scale bytes, amax, format."""
    packed, scale = tensors["weight"], tensors["weight_scale"]
    if "weight_scale_2" not in tensors:
        return packed, scale.view(torch.uint8), None, "mxfp4"
    amax = _amax_with(tensors["weight_scale_2"], side=1)
    return packed, scale.view(torch.uint8), amax, "nvfp4"


def _check_whole_bytes(function, q):
    if q.transposed or q.K % 2:
        raise RuntimeError(
            f"my_ops.FP4Tensor.{function}: expected rows of an even number of elements, got "
            f"{'a transposed tensor' if q.transposed else q.K}"
        )


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
