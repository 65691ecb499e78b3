"""One model in several processes, for train_tiny_lm.py: FSDP2, tensor parallelism or DDP.

torchrun starts the processes; each has a GPU of its own (NCCL), or all share the CPU (gloo).
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from tiny_lm import TinyLM
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

KINDS = ("fsdp", "tp", "ddp")

# Between the products of a block each process has some of the heads or of the hidden features; at
# the norms, some of the positions.
POSITIONS = Shard(1)
BLOCK_PLAN = {
    "attention_norm": SequenceParallel(),
    "attention.qkv": ColwiseParallel(input_layouts=POSITIONS),
    "attention.out": RowwiseParallel(output_layouts=POSITIONS),
    "mlp_norm": SequenceParallel(),
    "mlp.up": ColwiseParallel(input_layouts=POSITIONS),
    "mlp.down": RowwiseParallel(output_layouts=POSITIONS),
}
MODEL_PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=POSITIONS),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=POSITIONS, output_layouts=Replicate()),
}


def place_gradient(parameter: nn.Parameter) -> None:
    """As the parameter is placed. Each process has a term of a norm's gradient, and terms are what
    clip_grad_norm_ of torch 2.11 does not scale, silently."""
    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)


@dataclass(frozen=True)
class Processes:
    """The processes of a run, and how they share a model. Without a kind: this one alone."""

    kind: str | None
    device: torch.device
    mesh: DeviceMesh | None = None
    rank: int = 0
    count: int = 1

    @staticmethod
    def alone(device: torch.device) -> "Processes":
        return Processes(None, device)

    @staticmethod
    def start(kind: str | None, device: str) -> "Processes":
        if kind is None:
            return Processes.alone(torch.device(device))
        if "LOCAL_RANK" not in os.environ:
            raise SystemExit(f"--parallel {kind}: start it with torchrun --nproc-per-node 2")
        if device.startswith("cuda"):
            own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(own)
            dist.init_process_group("nccl", device_id=own)
        else:
            own = torch.device("cpu")
            dist.init_process_group("gloo")
        rank, count = dist.get_rank(), dist.get_world_size()
        return Processes(kind, own, init_device_mesh(own.type, (count,)), rank, count)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, model: TinyLM, compiled: bool) -> nn.Module:
        """What to call in the place of the model; it trains the model's parameters."""
        if self.kind == "tp":
            self._check_divides(model.shape.heads, "heads")
            parallelize_module(model, self.mesh, MODEL_PLAN)
            for block in model.blocks:
                parallelize_module(block, self.mesh, BLOCK_PLAN)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(place_gradient)
        if self.kind == "fsdp":  # which collects the weights of a block when it is called
            for i, block in enumerate(model.blocks):
                model.blocks[i] = torch.compile(block, fullgraph=True) if compiled else block
                fully_shard(model.blocks[i], mesh=self.mesh)
            return fully_shard(model, mesh=self.mesh)
        # Not block by block: torch 2.14 loses the gradient of a compiled function's argument that
        # a collective is still at work on.
        network = torch.compile(model, fullgraph=True) if compiled else model
        return nn.parallel.DistributedDataParallel(network) if self.kind == "ddp" else network

    def part(self, batch: Tensor) -> Tensor:
        """The windows for this process: with tensor parallelism all, else a share of them."""
        if self.kind in ("fsdp", "ddp"):
            self._check_divides(len(batch), "windows")
            batch = batch.chunk(self.count)[self.rank]
        return batch.to(self.device)

    def mean(self, loss: Tensor) -> float:
        """The loss of the whole batch, from those of the parts."""
        if self.kind in ("fsdp", "ddp"):
            dist.all_reduce(loss)
            loss = loss / self.count
        return loss.item()

    def collect(self, model: TinyLM) -> TinyLM:
        """In the first process the whole model, no longer shared."""
        if self.kind is None:
            return model
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(model, options=options)  # in the first process
        whole = TinyLM(model.shape, model.operators).to(self.device)
        if self.first:
            whole.load_state_dict(weights)
        return whole

    def end(self) -> None:
        if self.kind is not None:
            dist.destroy_process_group()

    def _check_divides(self, number: int, what: str) -> None:
        if number % self.count:
            raise SystemExit(
                f"--parallel {self.kind}: expected a number of processes that divides the {number} "
                f"{what}, got {self.count}"
            )
