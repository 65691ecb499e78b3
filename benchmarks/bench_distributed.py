"""Training of the example's language model on one process and on two: tokens in a second.

python benchmarks/bench_distributed.py [--quick] [--limit 600]

Two processes have a GPU each (NCCL), or share the CPU (gloo).
"""

import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from suite import Suite, Values
from torch.distributed.device_mesh import init_device_mesh

import my_ops
import my_ops.distributed

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from processes import KINDS, Processes
from tiny_lm import EPS, Operators, Shape, Text, TinyLM, loss_of

suite = Suite("distributed")

WINDOWS = 8  # of all processes, in a step
WARM_UP, STEPS = 3, 7
SECONDS = 300  # for two processes
# By their parameters. The example's own has 1M; "tiny" only shows that this runs, in one process.
MODELS = {
    "400M": Shape(layers=8, width=2048, heads=16, hidden=8192, context=1024),
    "1M": Shape(),
    "tiny": Shape(layers=1, width=64, heads=2, hidden=128, context=32),
}
SIZES = {"gpu": ["400M"], "gpu quick": ["1M"], "cpu": ["1M"], "cpu quick": ["tiny"]}
COMPILED = {"gpu": [False, True], "gpu quick": [False], "cpu": [False], "cpu quick": [False]}
PRODUCTS = {"fp32": my_ops.matmul, "fp4": my_ops.fp4_matmul}  # of the blocks


@suite.group(model=SIZES, precision=list(PRODUCTS), compiled=COMPILED)
def training(device, model, precision, compiled):
    """Windows x context / median step, of forward, backward and AdamW; all losses agree."""
    what = MODELS[model], precision, compiled
    figures = {"my_ops, 1 process": train(Processes.alone(torch.device(device)), *what)}
    if model != "tiny" and (device == "cpu" or torch.cuda.device_count() > 1):
        for kind in KINDS:
            figures[f"my_ops, 2 processes, {kind}"] = train_two(kind, device, what)
    (_, expected), *_ = figures.values()
    for name, (_, loss) in figures.items():
        assert abs(loss - expected) < 0.05, f"{name}: a loss of {loss}, {expected} expected"
    return Values({name: rate for name, (rate, _) in figures.items()}, "tokens/s")


def train_two(kind: str, device: str, what: tuple) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = kind, f"file://{folder}/store", device, what, answers
        processes = [context.Process(target=run, args=(rank, *arguments)) for rank in range(2)]
        for process in processes:
            process.start()
        try:
            return answers.get(timeout=SECONDS)
        finally:
            for process in processes:
                process.join(timeout=10)
                process.kill()


def run(rank, kind, store, device, what, answers) -> None:
    """One of two processes; the first one answers."""
    own = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(own)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=2)
    processes = Processes(kind, own, init_device_mesh(device, (2,)), rank, 2)
    figures = train(processes, *what)
    if processes.first:
        answers.put(figures)
    processes.end()


def train(
    processes: Processes, shape: Shape, precision: str, compiled: bool
) -> tuple[float, float]:
    """Tokens in a second, and the last loss."""
    torch.manual_seed(0)
    model = TinyLM(shape, operators(precision)).to(processes.device)
    network = processes.share(model, compiled)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    text = Text.load(shape.context)
    seconds = []
    for step in range(WARM_UP + STEPS):
        batch = text.batch(WINDOWS, 0, step)
        start = time.perf_counter()
        loss = loss_of(network, processes.part(batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        last = processes.mean(loss.detach())  # which waits for the device
        seconds.append(time.perf_counter() - start)
    return WINDOWS * shape.context / statistics.median(seconds[WARM_UP:]), last


def operators(precision: str) -> Operators:
    return Operators(
        name="my_ops",
        rmsnorm=lambda x, weight: my_ops.rmsnorm(x, weight, EPS),
        square=my_ops.square,
        matmul=my_ops.matmul,
        block_matmul=PRODUCTS[precision],
    )


if __name__ == "__main__":
    suite.main()
