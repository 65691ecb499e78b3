"""FP4 weights under tensor parallelism: their distribution, and the styles that shard FP4Linear."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, parallel
from torch.distributed.tensor.placement_types import Placement

from my_ops._errors import raise_expected
from my_ops._fp4_scales import BLOCK_SIZE
from my_ops.distributed._operands import splits_evenly
from my_ops.fp4_tensor import FP4Tensor
from my_ops.nn import FP4Linear


def distribute_fp4(
    q: FP4Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    src_data_rank: int | None = 0,
) -> FP4Tensor:
    """:func:`torch.distributed.tensor.distribute_tensor` for an FP4Tensor.

    Args:
        q: the whole tensor, not transposed (its transpose is ``distribute_fp4(...).t()``).
        mesh, placements, src_data_rank: as distribute_tensor takes them: Replicate() and Shard(d).
            Sharding the last, quantized dimension needs equally many whole blocks on each process
            of the mesh.

    Returns:
        An FP4Tensor with the shape of ``q`` whose ``packed``, ``scale_bytes`` and ``amax`` are
        DTensors. The operators of my_ops take it beside DTensors.

    Raises:
        RuntimeError: for another tensor or placement; the message names the argument.
    """
    if not isinstance(q, FP4Tensor) or q.transposed or isinstance(q.packed, DTensor):
        got = "a transposed or sharded one" if isinstance(q, FP4Tensor) else type(q).__name__
        raise_expected("distributed.distribute_fp4", "q", "a whole FP4Tensor, not transposed", got)
    placements = [Shard(p.dim % q.dim()) if p.is_shard() else p for p in placements]
    for placement in placements:
        if placement.is_partial():
            raise_expected(
                "distributed.distribute_fp4", "placements", "Replicate() or Shard(d)", placement
            )
        if placement == Shard(q.dim() - 1) and not splits_evenly(q.K, q.format, mesh.size()):
            size = BLOCK_SIZE[q.format]
            expected = f"whole blocks of {size} elements for each of {mesh.size()} processes"
            raise_expected(
                "distributed.distribute_fp4",
                "placements",
                expected,
                f"Shard({placement.dim}) of {list(q.shape)}",
            )
    replicated = [Replicate()] * mesh.ndim
    held = {
        name: distribute_tensor(
            getattr(q, name).detach(),
            mesh,
            replicated if name == "amax" else placements,
            src_data_rank=src_data_rank,
        )
        for name in q._tensor_names()
    }
    return q._replace(**held)


def gather_fp4(q: FP4Tensor) -> FP4Tensor:
    """The whole of a distributed FP4Tensor on each process, as DTensor.full_tensor() gives it.

    Args:
        q: what :func:`distribute_fp4` returned, or a result of it.

    Returns:
        An FP4Tensor of plain tensors. Every process of the mesh has to call it.
    """
    return q._map(lambda t: t.full_tensor() if isinstance(t, DTensor) else t)


class _ShardsFP4Linear:
    """Beside a style of torch: it takes an FP4Linear where that one takes an nn.Linear."""

    _input: Placement
    _weight: Placement
    _bias: Placement

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        if not isinstance(module, FP4Linear):
            return super()._apply(module, device_mesh)
        for name, placement in (("weight", self._weight), ("bias", self._bias)):
            parameter = getattr(module, name)
            if parameter is not None:
                frozen = isinstance(parameter, FP4Tensor)
                distribute = distribute_fp4 if frozen else distribute_tensor
                shard = distribute(
                    parameter, device_mesh, [placement], src_data_rank=self.src_data_rank
                )
                shard = torch.nn.Parameter(shard, requires_grad=parameter.requires_grad)
                setattr(module, name, shard)

        def distribute_input(module, inputs):
            (x,) = inputs
            if not isinstance(x, DTensor):
                x = DTensor.from_local(x, device_mesh, self.input_layouts, run_check=False)
            return x.redistribute(placements=[self._input], async_op=True)

        def lay_out_output(module, inputs, y):
            y = y.redistribute(placements=self.output_layouts, async_op=True)
            return y.to_local() if self.use_local_output else y

        module.register_forward_pre_hook(distribute_input)
        module.register_forward_hook(lay_out_output)
        return module


class ColwiseParallel(_ShardsFP4Linear, parallel.ColwiseParallel):
    """torch's ColwiseParallel for FP4Linear, too: each process has some of the out_features.

    Its bytes are those of the whole layer; on a CPU, with 16 columns or more for a process, so are
    the bits of the result. Elsewhere the number of columns may decide the order of a sum. Arguments
    and other modules: see :class:`torch.distributed.tensor.parallel.ColwiseParallel`.
    """

    _input, _weight, _bias = Replicate(), Shard(0), Shard(0)


class RowwiseParallel(_ShardsFP4Linear, parallel.RowwiseParallel):
    """torch's RowwiseParallel for FP4Linear, too: each process has some of the in_features.

    They are split between FP4 blocks: in_features has to be a multiple of the block size times the
    number of processes. The result is that of the whole layer but for the order of its sum.
    Arguments and other modules: see :class:`torch.distributed.tensor.parallel.RowwiseParallel`.
    """

    _input, _weight, _bias = Shard(-1), Shard(1), Replicate()
