"""What the DTensor rules of the FP4 operators share: operands, the choice of placements, the call.

An FP4 operator takes the logical shape of an operand as a list. register_sharding would hand it on
as it is, but a process that holds some of the bytes needs the shape of what it holds. Therefore
these rules call the operator on the local tensors themselves.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from my_ops._dense import dense_strides
from my_ops._errors import expected_message, raise_expected
from my_ops._fp4_scales import BLOCK_SIZE


def splits_evenly(K: int, format: str, processes: int) -> bool:
    """Whether each process gets whole blocks of the quantized dimension, all equally many."""
    return K % (BLOCK_SIZE[format] * processes) == 0


class Dense:
    """An ordinary operand, or None. With a format: one that is quantized along its last dimension,
    and sharded there only between blocks; with tiles between rows of tiles, too."""

    def __init__(self, name: str, tensor: Tensor | None, format: str | None = None, tiles=False):
        # Detached: these rules run below autograd, which redistribute() must not begin anew.
        self.tensor = None if tensor is None else tensor.detach()
        self.tensors = () if tensor is None else (self.tensor,)
        self.name, self.format, self.tiles = name, format, tiles

    @property
    def placements(self):
        return self.tensor.placements

    def fits(self, placement) -> bool:
        if self.format is None or not placement.is_shard():
            return True
        if placement.dim != self.tensor.ndim - 1 and not self.tiles:
            return True
        size = self.tensor.shape[placement.dim]
        return splits_evenly(size, self.format, self.tensor.device_mesh.size())

    def local(self, placements) -> tuple:
        """What this process hands to the operator."""
        if self.tensor is None:
            return (None,)
        # A term of a partial sum (the bias) is shared out among its processes, as DTensor does.
        mesh = self.tensor.device_mesh
        shares = math.prod(mesh.size(i) for i, p in enumerate(placements) if p.is_partial())
        whole = [Replicate() if p.is_partial() else p for p in placements]
        tensor = self.tensor.redistribute(placements=whole).to_local()
        return (tensor if shares == 1 else tensor.float() / shares,)


class Packed:
    """An FP4 operand. Placements are those of the tensor that it stands for, not of its bytes."""

    def __init__(self, name, packed, scale, amax, shape, transposed, format):
        self.name, self.amax, self.format = name, amax, format
        self.tensors = packed, scale
        self.shape, self.transposed = list(shape), transposed
        self.stored_shape = self.shape[::-1] if transposed else self.shape

    @property
    def placements(self):
        return [self._flip(p) for p in self.tensors[0].placements]

    def fits(self, placement) -> bool:
        if self._flip(placement) != Shard(len(self.stored_shape) - 1):
            return True
        processes = self.tensors[0].device_mesh.size()
        return splits_evenly(self.stored_shape[-1], self.format, processes)

    def local(self, placements) -> tuple:
        stored = [self._flip(p) for p in placements]
        packed, scale = (t.redistribute(placements=stored).to_local() for t in self.tensors)
        mesh, last = self.tensors[0].device_mesh, packed.dim() - 1
        parts = math.prod(mesh.size(i) for i, p in enumerate(stored) if p == Shard(last))
        shape = [*packed.shape[:-1], self.stored_shape[-1] // parts]
        shape = shape[::-1] if self.transposed else shape
        return packed, scale, local_amax(self.amax), shape, self.transposed

    def _flip(self, placement):
        return Shard(1 - placement.dim) if self.transposed and placement.is_shard() else placement


def local_amax(amax: Tensor | None) -> Tensor | None:
    """The same on every process: a replicated DTensor, or what a caller of fp4_quantize gave."""
    return amax.to_local() if isinstance(amax, DTensor) else amax


def call(op: str, function, operands: list, options: list, shapes: list[list[int]]):
    """function(*local operands) under the option that moves the fewest bytes, as DTensors.

    An option, for one dimension of the mesh: the placement of the results, then of each operand.
    """
    mesh = _common_mesh(op, operands)
    chosen = [_cheapest(operands, options, i) for i in range(mesh.ndim)]
    arguments = []
    for n, operand in enumerate(operands, 1):
        placements = [option[n] for option in chosen]
        _warn_where_gathered(op, operand, placements)
        arguments += operand.local(placements)
    results = function(*arguments)
    results = [results] if isinstance(results, Tensor) else results
    placements = [option[0] for option in chosen]
    wrapped = [
        DTensor.from_local(
            result,
            mesh,
            placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(dense_strides(shape)),
        )
        for result, shape in zip(results, shapes, strict=True)
    ]
    return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)


def _common_mesh(op: str, operands: list):
    tensors = [(operand.name, tensor) for operand in operands for tensor in operand.tensors]
    meshes = [tensor.device_mesh for _, tensor in tensors if isinstance(tensor, DTensor)]
    mesh = meshes[0] if meshes else "a mesh"  # where amax alone is a DTensor
    for name, tensor in tensors:
        got = tensor.device_mesh if isinstance(tensor, DTensor) else "a plain tensor"
        if got != mesh:
            raise_expected(op, name, f"a DTensor on {mesh}, as another operand is", got)
    return mesh


def _cheapest(operands: list, options: list, i: int):
    def moved_bytes(option):
        return sum(
            tensor.numel() * tensor.itemsize
            for operand, placement in zip(operands, option[1:], strict=True)
            for tensor in operand.tensors
            if operand.placements[i] not in (placement, Replicate())
        )

    possible = [
        option
        for option in options
        if all(o.fits(p) for o, p in zip(operands, option[1:], strict=True) if o.tensors)
    ]
    return min(possible, key=moved_bytes)


def _warn_where_gathered(op: str, operand, placements) -> None:
    if operand.tensors and any(
        now.is_shard() and now != then
        for now, then in zip(operand.placements, placements, strict=True)
    ):
        expected = (
            "a sharding that the operator keeps (by rows, columns or whole FP4 blocks, and the "
            "same in both operands)"
        )
        got = f"{tuple(operand.placements)}: it is gathered in every call"
        warnings.warn(expected_message(op, operand.name, expected, got), stacklevel=2)
