"""DTensor sharding rules, FSDP2 and tensor parallelism, on two gloo processes of this machine."""

import importlib
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import my_ops

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo"
)


def run(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    importlib.import_module("my_ops.distributed")
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for scenario in (dtensor_rules, fsdp, ddp, tensor_parallel):
        torch.manual_seed(0)  # the same tensors in both processes
        scenario(mesh)
    dist.destroy_process_group()


def test_two_processes():
    """One start of two processes for all: it takes longer than what they do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, (port,), nprocs=2)


def compare(function, mesh, tensors, placements, out_placement, exact=True):
    """function of DTensors with these placements against that of whole tensors, and gradients."""
    from torch.distributed.tensor import distribute_tensor

    whole = [t.clone().requires_grad_() for t in tensors]
    sharded = [
        distribute_tensor(t, mesh, [p]).requires_grad_()
        for t, p in zip(tensors, placements, strict=True)
    ]
    expected, actual = function(*whole), function(*sharded)
    assert actual.placements == (out_placement,), (placements, actual.placements)
    close = {"rtol": 0, "atol": 0} if exact else {}
    torch.testing.assert_close(actual.full_tensor(), expected, **close)
    expected.pow(2).sum().backward()
    actual.full_tensor().pow(2).sum().backward()
    for ours, wanted in zip(sharded, whole, strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), wanted.grad)


def dtensor_rules(mesh):
    """Each placement that needs no communication, forward and backward."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    x, weight, b = torch.randn(4, 6, 8), torch.randn(8), torch.randn(8, 10)
    replicate, column = Replicate(), Shard(2)
    for p in (Shard(0), Shard(1), column, replicate):
        compare(my_ops.square, mesh, [x], [p], p)
        rows = replicate if p == column else p  # a row has to be whole
        compare(my_ops.rmsnorm, mesh, [x, weight], [p, replicate], rows)
        compare(my_ops.rmsnorm, mesh, [x], [p], rows)
        add = lambda x, r, w: torch.add(*my_ops.add_rmsnorm(x, r, w))  # noqa: E731
        compare(add, mesh, [x, x.flip(0), weight], [p, p, replicate], rows)
    for a_place, b_place, out in (
        (replicate, replicate, replicate),
        (Shard(0), replicate, Shard(0)),
        (Shard(1), replicate, Shard(1)),
        (replicate, Shard(1), column),  # by columns
        (column, Shard(0), Partial()),  # by rows, as the layer after it is
    ):
        compare(my_ops.matmul, mesh, [x, b], [a_place, b_place], out, exact=False)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = my_ops.nn.RMSNorm(16)
        self.up = torch.nn.Linear(16, 32, bias=False)
        self.down = my_ops.nn.FP4Linear(32, 16)

    def forward(self, x):
        return x + self.down(my_ops.square(self.up(self.norm(x))))


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(Block(), Block())


def train(model, x, steps=3):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    losses = []
    for _ in range(steps):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def fsdp(mesh):
    """FSDP2 trains as one process does; frozen FP4 weights stay whole on each."""
    from torch.distributed.fsdp import fully_shard

    x = torch.randn(8, 16)
    expected = train(network(), x)
    model = network()
    frozen = {p for p in model.parameters() if isinstance(p, my_ops.FP4Tensor)}
    for block in model:
        fully_shard(block, mesh=mesh, ignored_params=frozen)
    fully_shard(model, mesh=mesh, ignored_params=frozen)
    half = x.chunk(2)[mesh.get_local_rank()]
    losses = train(model, half)
    dist.all_reduce(losses, dist.ReduceOp.AVG if mesh.device_type == "cuda" else dist.ReduceOp.SUM)
    torch.testing.assert_close(losses / 2, expected)


def ddp(mesh):
    """DDP trains as one process does."""
    x = torch.randn(8, 16)
    expected = train(network(), x)
    # The first broadcast of the parameters flattens them, which FP4 bytes do not take.
    model = torch.nn.parallel.DistributedDataParallel(network(), init_sync=False)
    losses = train(model, x.chunk(2)[mesh.get_local_rank()])
    dist.all_reduce(losses)
    torch.testing.assert_close(losses / 2, expected)


def tensor_parallel(mesh):
    """A norm with sharded rows between layers that PyTorch's own styles shard."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class MLP(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = my_ops.nn.RMSNorm(16)
            self.up = torch.nn.Linear(16, 32)
            self.down = torch.nn.Linear(32, 16)

        def forward(self, x):
            return self.down(my_ops.square(self.up(self.norm(x))))

    x = torch.randn(8, 16)
    plain, model = (torch.manual_seed(1) and MLP() for _ in range(2))
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=dist.tensor.Shard(0)),
        "down": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)
    torch.testing.assert_close(train(model, x), train(plain, x))
