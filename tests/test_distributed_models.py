"""Models in two processes train as they do in one: tensor parallelism, FSDP2, DDP, checkpoints.

gloo on two processes of this machine, NCCL on two GPUs.
"""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from helpers import assert_same_bytes
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from two_processes import on_both

import my_ops
from my_ops.distributed import ColwiseParallel, RowwiseParallel, gather_fp4
from my_ops.nn import flatten_state_dict, unflatten_state_dict

pytestmark = pytest.mark.xdist_group("two processes")  # one worker starts them once
WIDTH, HIDDEN, R = 32, 64, Replicate()


class MLP(torch.nn.Module):
    """A norm, a trained layer, and two frozen ones in FP4."""

    def __init__(self, seed: int, device: str):
        super().__init__()
        torch.manual_seed(seed)
        self.norm = my_ops.nn.RMSNorm(WIDTH)
        self.mix = torch.nn.Linear(WIDTH, WIDTH)
        self.up = my_ops.nn.FP4Linear(WIDTH, HIDDEN)
        self.down = my_ops.nn.FP4Linear(HIDDEN, WIDTH)
        self.to(device)

    def forward(self, x):
        return self.down(my_ops.square(self.up(self.mix(self.norm(x)))))


def tensor_parallel(model, mesh):
    """Takes rows of a batch, returns all of it; in between rows, then features are sharded."""
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "mix": ColwiseParallel(input_layouts=Shard(0), output_layouts=R),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    return parallelize_module(model, mesh, plan)


def train(model, x, steps=3):
    """The losses of a few steps."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    losses = []
    for _ in range(steps):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def halves(mesh):
    """A batch, and the rows of this process."""
    x = torch.randn(8, WIDTH, device=mesh.device_type)
    return x, x.chunk(2)[mesh.get_local_rank()]


def check_data_parallel(model, mesh, alone):
    x, half = halves(mesh)
    losses = train(model, half)
    dist.all_reduce(losses)
    torch.testing.assert_close(losses / 2, train(alone, x))


@on_both
def test_fp4_linear_column_and_row_wise(mesh):
    """The layer is what it was; its bytes are shared out, half to each process."""
    x = torch.randn(8, WIDTH, device=mesh.device_type)
    model, alone = (MLP(1, mesh.device_type) for _ in range(2))
    parallelize_module(model.up, mesh, ColwiseParallel(output_layouts=R))
    parallelize_module(model.down, mesh, RowwiseParallel(input_layouts=R))
    for name, rows, columns in (("up", HIDDEN // 2, WIDTH), ("down", WIDTH, HIDDEN // 2)):
        weight, whole = getattr(model, name).weight, getattr(alone, name).weight
        assert weight.packed.to_local().shape == (rows, columns // 2)
        assert weight.scale_bytes.to_local().shape == (rows, columns // 16)
        assert getattr(model, name).bias.to_local().shape == (rows,)
        assert weight.shape == whole.shape and not weight.requires_grad
        assert_same_bytes(gather_fp4(weight), whole)
    expected = alone.up(x)
    if mesh.device_type == "cpu":  # on a GPU the number of columns decides the order of a sum
        assert torch.equal(model.up(x), expected)
    torch.testing.assert_close(model.up(x), expected)
    torch.testing.assert_close(model.down(expected), alone.down(expected))


@on_both
def test_trainable_fp4_linear_column_and_row_wise(mesh):
    """The weight is a dense one, sharded as an nn.Linear's, and is quantized in each step."""
    x = torch.randn(8, WIDTH, device=mesh.device_type)
    for style in (ColwiseParallel(output_layouts=R), RowwiseParallel(input_layouts=R)):
        torch.manual_seed(1)
        alone = my_ops.nn.FP4Linear(WIDTH, HIDDEN, trainable=True).to(mesh.device_type)
        model = parallelize_module(copy.deepcopy(alone), mesh, style)
        expected, actual = alone(x), model(x)
        torch.testing.assert_close(actual, expected)
        for y in (expected, actual):
            y.square().sum().backward()
        torch.testing.assert_close(model.weight.grad.full_tensor(), alone.weight.grad)
        torch.testing.assert_close(model.bias.grad.full_tensor(), alone.bias.grad)


@on_both
@pytest.mark.parametrize("compiled", [False, True])
def test_tensor_parallel(mesh, compiled):
    """Gradients and losses; compiled in one graph, with the collectives in it."""
    alone, model = (MLP(1, mesh.device_type) for _ in range(2))
    tensor_parallel(model, mesh)
    if compiled:
        model.compile(fullgraph=True, backend="aot_eager")
    x, half = halves(mesh)
    for layer, rows in ((alone, x), (model, half)):
        layer(rows).pow(2).mean().backward()
    for ours, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        assert (ours.grad is None) == (wanted.grad is None) == isinstance(wanted, my_ops.FP4Tensor)
        if wanted.grad is not None:
            torch.testing.assert_close(ours.grad.full_tensor(), wanted.grad)
    torch.testing.assert_close(train(model, half), train(alone, x))


@on_both
def test_fsdp(mesh):
    """FP4 weights stay whole on each process."""
    alone, model = (MLP(1, mesh.device_type) for _ in range(2))
    frozen = {p for p in model.parameters() if isinstance(p, my_ops.FP4Tensor)}
    for layer in (model.up, model.down, model):
        fully_shard(layer, mesh=mesh, ignored_params=frozen)
    check_data_parallel(model, mesh, alone)


@on_both
def test_fsdp_trains_through_fp4(mesh):
    """A trainable FP4 weight is a parameter as any; one batch and seed on both: the same bits."""
    options = {"trainable": True, "backward": "fp4", "rht": True, "device": mesh.device_type}
    torch.manual_seed(2)
    up, down = (my_ops.nn.FP4Linear(*n, **options) for n in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    alone = torch.nn.Sequential(up, torch.nn.Tanh(), down)
    model = copy.deepcopy(alone)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    x, losses = torch.randn(40, WIDTH, device=mesh.device_type), []
    for network in (model, alone):
        torch.manual_seed(3)
        losses.append(train(network, x))
    assert torch.equal(*losses)
    for ours, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours.full_tensor(), wanted)


@on_both
def test_ddp(mesh):
    alone, model = (MLP(1, mesh.device_type) for _ in range(2))
    # The first broadcast of the parameters flattens them, which FP4 bytes do not take.
    model = torch.nn.parallel.DistributedDataParallel(model, init_sync=False)
    check_data_parallel(model, mesh, alone)


def save(mesh, folder):
    """Under FSDP2 the state dict as it is; under tensor parallelism with FP4 weights in parts."""
    model = MLP(1, mesh.device_type)
    whole = {p for p in model.parameters() if isinstance(p, my_ops.FP4Tensor)}
    fully_shard(model, mesh=mesh, ignored_params=whole)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder / "fsdp")
    tensors, metadata = flatten_state_dict(
        tensor_parallel(MLP(1, mesh.device_type), mesh).state_dict()
    )
    dcp.save({"model": tensors, "metadata": metadata}, checkpoint_id=folder / "tp")


def load(model, folder):
    """Into whatever the model is sharded like."""
    tensors, metadata = flatten_state_dict(model.state_dict())
    dcp.load({"model": tensors, "metadata": metadata}, checkpoint_id=folder)
    model.load_state_dict(unflatten_state_dict(tensors, metadata))


def load_sharded(mesh, folder):
    saved = MLP(1, mesh.device_type)
    x, half = halves(mesh)

    model = tensor_parallel(MLP(2, mesh.device_type), mesh)
    load(model, folder / "tp")
    torch.testing.assert_close(model(half), saved(x))

    # up is now sharded by its other dimension.
    model = MLP(3, mesh.device_type)
    style = RowwiseParallel(input_layouts=R)
    parallelize_module(model.up, mesh, style)
    load(model, folder / "tp")
    assert_same_bytes(gather_fp4(model.up.weight), saved.up.weight)
    torch.testing.assert_close(model(x), saved(x))

    model = MLP(4, mesh.device_type)
    whole = {p for p in model.parameters() if isinstance(p, my_ops.FP4Tensor)}
    fully_shard(model, mesh=mesh, ignored_params=whole)
    state = get_model_state_dict(model)
    dcp.load({"model": state}, checkpoint_id=folder / "fsdp")
    model.load_state_dict(state)
    torch.testing.assert_close(model(half), saved(half))
    complete = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, tensor in saved.state_dict().items():
        assert torch.equal(complete[name], tensor)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # in one process
def test_checkpoint(pair, tmp_path):
    """torch.distributed.checkpoint: saved by two processes, loaded by two and by one."""
    pair.run(save, folder=tmp_path)
    pair.run(load_sharded, folder=tmp_path)
    x = torch.randn(8, WIDTH, device=pair.device)
    saved = MLP(1, pair.device)
    model = MLP(5, pair.device)
    load(model, tmp_path / "tp")
    assert torch.equal(model(x), saved(x))
    model = MLP(6, pair.device)
    state = model.state_dict()
    dcp.load({"model": state}, checkpoint_id=tmp_path / "fsdp")
    model.load_state_dict(state)
    assert torch.equal(model(x), saved(x))
