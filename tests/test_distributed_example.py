"""examples/train_tiny_lm.py in two processes: the losses and weights of one process.

gloo on two processes of this machine, NCCL on two GPUs. test_examples.py runs the whole program.
"""

import argparse
import functools
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

pytestmark = pytest.mark.xdist_group("two processes")  # one worker starts them once
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def train(together, precision):
    """In the first step all but the head, which starts at zero, has no gradient.

    In fp32 the loss of the fourth shows a gradient that was clipped wrongly.
    """
    import train_tiny_lm as example

    example.HELD_OUT_WINDOWS = 4
    steps = 4 if precision == "fp32" else 2
    options = argparse.Namespace(
        steps=steps,
        seed=0,
        format="nvfp4",
        compile=False,
        precision=precision,
        parallel=together.kind,
    )
    text = example.Text.load(example.Shape.context)
    return example.train(example.my_ops_operators(options), text, together, options)


@functools.cache
def train_alone(device, precision):
    from processes import Processes

    return train(Processes.alone(device), precision)


def train_together(mesh, parallel, precision):
    sys.path.append(str(EXAMPLES))
    from processes import Processes

    rank = mesh.get_rank()
    device = torch.device("cpu") if mesh.device_type == "cpu" else torch.device("cuda", rank)
    together = Processes(parallel, device, mesh, rank, mesh.size())
    run = train(together, precision)
    if not together.first:
        return
    alone = train_alone(device, precision)
    # In FP4 the last bit of a sum can decide between two codes.
    tolerance = 1e-5 if precision == "fp32" else 2e-3
    assert_close(run.losses, alone.losses, rtol=0, atol=tolerance)
    assert_close(run.held_out, alone.held_out, rtol=0, atol=tolerance)
    if precision == "fp32":
        # A step of AdamW is as long (here 2e-4 to 5e-3) for a gradient close to zero, whose last
        # bits then show.
        weights = run.model.state_dict()
        for name, wanted in alone.model.state_dict().items():
            assert_close(weights[name], wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "parallel, precision",
    [("fsdp", "fp32"), ("tp", "fp32"), ("ddp", "fp32"), ("fsdp", "fp4"), ("tp", "fp4")],
)
def test_trains_as_one_process_does(pair, parallel, precision):
    pytest.importorskip("tqdm")
    pair.run(train_together, parallel=parallel, precision=precision)
