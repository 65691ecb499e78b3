"""State dicts with FP4 weights as plain tensors, for files that hold nothing else (safetensors)."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping

import torch
from torch import Tensor

from my_ops._dense import DTYPE_NAMES
from my_ops._errors import raise_expected
from my_ops.fp4_tensor import FP4Tensor

_KEY = "my_ops.fp4"


def flatten_state_dict(
    state_dict: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Takes the FP4 tensors of a state dict apart: ``(tensors, metadata)``.

    ``safetensors.torch.save_file(tensors, path, metadata)`` then saves the model. An FP4 ``name``
    becomes ``name.packed``, ``name.scale_bytes`` and, in NVFP4 with two
    levels, ``name.amax``; ``metadata`` says how they belong together.

    Args:
        state_dict: of a module, or any mapping of names to tensors.

    Returns:
        The tensors, contiguous, none an FP4Tensor; and metadata, strings to strings.
    """
    tensors, described = {}, {}
    for name, tensor in state_dict.items():
        if isinstance(tensor, FP4Tensor):
            described[name] = {
                "format": tensor.format,
                "K": tensor.K,
                "dtype": DTYPE_NAMES[tensor.dtype],
                "transposed": tensor.transposed,
            }
            for part in ("packed", "scale_bytes", "amax"):
                if getattr(tensor, part) is not None:
                    tensors[f"{name}.{part}"] = getattr(tensor, part).contiguous()
        else:
            tensors[name] = tensor.contiguous()
    return tensors, {_KEY: json.dumps(described)}


def unflatten_state_dict(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> dict[str, Tensor]:
    """Puts together what :func:`flatten_state_dict` took apart.

    Args:
        tensors: what a file holds.
        metadata: what the file says of itself (``safe_open(path, "pt").metadata()``).

    Returns:
        A dict for ``load_state_dict``, its FP4 weights as :class:`my_ops.FP4Tensor`.

    Raises:
        ValueError: where a tensor that the metadata names is missing, and for metadata that
            flatten_state_dict has not written.
        RuntimeError: for a format or dtype that FP4Tensor has not.
    """
    state_dict = dict(tensors)
    for name, (format, K, dtype, transposed) in _described(metadata or {}).items():
        missing = {f"{name}.packed", f"{name}.scale_bytes"} - state_dict.keys()
        if missing:
            expected = f"{' and '.join(sorted(missing))} of the FP4 tensor '{name}'"
            raise_expected("nn.unflatten_state_dict", "tensors", expected, "none", ValueError)
        packed, scale_bytes, amax = (
            state_dict.pop(f"{name}.{part}", None) for part in ("packed", "scale_bytes", "amax")
        )
        state_dict[name] = FP4Tensor(packed, scale_bytes, amax, format, K, dtype, transposed)
    return state_dict


def _described(metadata: Mapping[str, str]) -> dict[str, tuple]:
    """format, K, dtype and transposed of each FP4 tensor."""
    text = metadata.get(_KEY, "{}")
    try:
        return {
            name: (of["format"], of["K"], getattr(torch, of["dtype"]), of["transposed"])
            for name, of in json.loads(text).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        expected = f"what flatten_state_dict wrote as '{_KEY}'"
        got = reprlib.repr(text)
        raise_expected("nn.unflatten_state_dict", "metadata", expected, got, ValueError)
