"""Trains a small language model on my_ops, beside plain PyTorch, and packs it into FP4.

    python examples/train_tiny_lm.py                     two to three minutes on two cores
    python examples/train_tiny_lm.py --precision fp4     the blocks' products in FP4; PyTorch's in
                                                         bfloat16
    python examples/train_tiny_lm.py --compile
    torchrun --nproc-per-node 2 examples/train_tiny_lm.py --parallel fsdp      or tp, or ddp

Norms, squares and products of the model are my_ops operators, forward and backward. The same
model is then trained in plain PyTorch from the same start on the same batches: the losses must
agree within a stated tolerance. At last the trained weights are packed into four bits. With
--parallel several processes train the first model; the second one trains in one of them.
"""

import argparse
import copy
import math
import os
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from processes import KINDS, Processes
from report import draw_losses, heading, megabytes, paragraph, row, table
from tiny_lm import EPS, Linear, Operators, Shape, Text, TinyLM, generate, loss_of
from torch import Tensor, nn
from tqdm import tqdm

# An installed my_ops comes first; `make` builds it in place, beside this folder.
sys.path.append(str(Path(__file__).resolve().parent.parent))

BATCH = 8  # windows a step
WARMUP = 20  # steps
LEARNING_RATE = 3e-3  # of the blocks' matrices
# Embedding, norms and head have far to go from 1 and 0: at 15 times the rate the model needs half
# the steps.
FAST_LEARNING_RATE = 15 * LEARNING_RATE
HELD_OUT_WINDOWS = 64
HELD_OUT_EVERY = 50  # steps
# The losses of first and last steps are means over these numbers. The very first step says nothing:
# the head starts at zero, and every model at ln 256.
FIRST_STEPS = 10
LAST_STEPS = 20
PROMPT = "The "

# The largest difference to plain PyTorch of the first and of the final losses, in nats per byte.
# In fp32 only roundings differ, which hundreds of steps can make a small drift of.
# FP4's products are other numbers from the start; 0.04 is 3 % of what 650 steps leave.
TOLERANCE = {"fp32": (1e-4, 0.01), "fp4": (0.3, 0.04)}


@dataclass
class Run:
    """A model in training, and its losses so far."""

    operators: Operators
    model: TinyLM
    losses: list[float] = field(default_factory=list)  # of each step
    held_out: dict[int, float] = field(default_factory=dict)  # by the steps done before
    seconds: float = 0.0

    @property
    def first_loss(self) -> float:
        return mean(self.losses[:FIRST_STEPS])

    @property
    def final_loss(self) -> float:
        return mean(self.losses[-LAST_STEPS:])


def main() -> int:
    options = parse_options()
    # The compiler's advice on GPUs; both models are compared in true FP32.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    text = Text.load(Shape.context)
    processes = Processes.start(options.parallel, options.device)
    if not processes.first:  # which reports for all
        sys.stdout = open(os.devnull, "w")
    describe(options, processes, text)

    reference = plain_torch(options.precision)
    operators = reference if options.backend == "torch" else my_ops_operators(options)
    heading(f"Training with {operators.name}")
    runs = [train(operators, text, processes, options)]
    processes.end()
    if not processes.first:
        return 0
    if options.backend == "my_ops":
        heading(f"Training with {reference.name}")
        runs.append(train(reference, text, Processes.alone(processes.device), options))
    model = runs[0].model

    agreed = len(runs) == 1 or compare(*runs, TOLERANCE[options.precision])
    packed_loss = None
    if options.backend == "my_ops":
        model, packed_loss = pack_into_fp4(runs[0], text, options)

    heading("A sample" + (" from the FP4 model" if packed_loss else ""))
    paragraph(generate(model, PROMPT, length=500, temperature=0.5, seed=options.seed))

    picture = options.out / "loss.png"
    draw_losses(runs, packed_loss, TOLERANCE[options.precision][1], picture)
    heading("Files")
    for file in sorted(options.out.glob("tiny_lm_*.pt")):
        row(str(file), megabytes(file.stat().st_size))
    row(str(picture), "the loss curves")
    return 0 if agreed else 1


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--steps", type=int, default=650, help="training steps [650]")
    parser.add_argument(
        "--precision",
        choices=("fp32", "fp4"),
        default="fp32",
        help="the blocks' products: my_ops.matmul, or my_ops.fp4_matmul (PyTorch: bf16) [fp32]",
    )
    parser.add_argument(
        "--format", choices=("nvfp4", "mxfp4"), default="nvfp4", help="of FP4 [nvfp4]"
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile the models")
    parser.add_argument(
        "--parallel",
        choices=KINDS,
        help="how the processes of torchrun share the model: FSDP2, tensor parallelism or DDP",
    )
    parser.add_argument("--device", default=gpu, help="cpu, cuda, cuda:1, ... [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and sample [0]")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for what is written [out]"
    )
    parser.add_argument(
        "--backend", choices=("my_ops", "torch"), default="my_ops", help="torch: that alone"
    )
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps: expected at least 1, got {options.steps}")
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def describe(options: argparse.Namespace, processes: Processes, text: Text) -> None:
    shape, device = Shape(), processes.device
    with torch.device("meta"):
        parameters = sum(p.numel() for p in TinyLM(shape, plain_torch("fp32")).parameters())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    where = name if device.type == "cuda" else f"{name}, threads: {torch.get_num_threads()}"
    heading("A byte-level language model")
    row("text", f"Python's documentation, {len(text.train) + len(text.held_out):,} bytes")
    row("model", f"{shape.layers} layers of width {shape.width}, {parameters:,} parameters")
    row(
        "training", f"{options.steps} steps of {BATCH} x {shape.context} bytes, seed {options.seed}"
    )
    row("products", "fp32" if options.precision == "fp32" else f"FP4 ({options.format})")
    row("device", where + (", compiled" if options.compile else ""))
    if options.parallel:
        row("processes", f"{processes.count}, {options.parallel}")


def plain_torch(precision: str) -> Operators:
    """What my_ops is held to: float32, and beside FP4 bfloat16 for the same products."""

    def bfloat16_matmul(a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a.bfloat16(), b.bfloat16()).to(a.dtype)

    return Operators(
        name="plain PyTorch" + (" in bfloat16" if precision == "fp4" else ""),
        rmsnorm=lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, EPS),
        square=torch.square,
        matmul=torch.matmul,
        block_matmul=bfloat16_matmul if precision == "fp4" else torch.matmul,
    )


def my_ops_operators(options: argparse.Namespace) -> Operators:
    import my_ops

    if options.parallel == "tp":
        import my_ops.distributed  # what DTensor has to know of the operators

    def fp4_matmul(a: Tensor, b: Tensor) -> Tensor:
        return my_ops.fp4_matmul(a, b, options.format)

    return Operators(
        name="my_ops",
        rmsnorm=lambda x, weight: my_ops.rmsnorm(x, weight, EPS),
        square=my_ops.square,
        matmul=my_ops.matmul,
        block_matmul=my_ops.matmul if options.precision == "fp32" else fp4_matmul,
    )


def train(
    operators: Operators, text: Text, processes: Processes, options: argparse.Namespace
) -> Run:
    """Trains a new model; the seed alone decides its start and its batches."""
    torch.manual_seed(options.seed)
    model = TinyLM(Shape(), operators).to(processes.device)
    run = Run(operators, model)
    network = processes.share(model, options.compile)
    optimizer = make_optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, options.steps))
    held_out = text.held_out_windows(HELD_OUT_WINDOWS)

    progress = tqdm(range(options.steps), bar_format=BAR, ncols=88, disable=not processes.first)
    for step in progress:
        if step % HELD_OUT_EVERY == 0:
            run.held_out[step] = evaluate(network, held_out, processes)
        start = time.perf_counter()
        batch = text.batch(BATCH, options.seed, step)
        loss = loss_of(network, processes.part(batch))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        run.losses.append(processes.mean(loss.detach()))
        run.seconds += time.perf_counter() - start
        progress.set_description_str(f"  loss {run.final_loss:.3f}", refresh=False)
    run.held_out[options.steps] = evaluate(network, held_out, processes)
    run.model = processes.collect(model)
    return run


BAR = "{desc} {percentage:3.0f}% {bar} {n}/{total}  {elapsed} < {remaining}"


def make_optimizer(model: TinyLM) -> torch.optim.Optimizer:
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    slow = set(matrices)
    others = [p for p in model.parameters() if p not in slow]
    groups = [
        {"params": matrices, "lr": LEARNING_RATE},
        {"params": others, "lr": FAST_LEARNING_RATE},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1)


def rate(step: int, steps: int) -> float:
    """The learning rate, relative: a short warm-up, then a cosine down to 5 %."""
    cosine = 0.5 + 0.5 * math.cos(math.pi * step / steps)
    return min(1.0, (step + 1) / WARMUP) * (0.05 + 0.95 * cosine)


@torch.no_grad()
def evaluate(model: nn.Module, windows: Tensor, processes: Processes) -> float:
    return processes.mean(loss_of(model, processes.part(windows)))


def compare(run: Run, reference: Run, tolerance: tuple[float, float]) -> bool:
    """Prints both runs' losses side by side; True where all are within the tolerance."""
    heading("my_ops beside plain PyTorch")
    first, final = tolerance
    steps = len(run.losses)
    lines = [
        (f"first {min(FIRST_STEPS, steps)} steps", run.first_loss, reference.first_loss, first),
        (f"last {min(LAST_STEPS, steps)} steps", run.final_loss, reference.final_loss, final),
        ("held-out text", run.held_out[steps], reference.held_out[steps], final),
    ]
    agreed = True
    rows = [("loss, nats per byte", "my_ops", "PyTorch", "difference", "tolerance")]
    for label, ours, theirs, allowed in lines:
        difference = abs(ours - theirs)
        agreed = agreed and difference <= allowed
        verdict = "ok" if difference <= allowed else "TOO LARGE"
        rows.append((label, f"{ours:.4f}", f"{theirs:.4f}", f"{difference:.4f}", allowed, verdict))
    per_step = [f"{1e3 * r.seconds / steps:.1f} ms" for r in (run, reference)]
    rows.append(("time of a step", *per_step))
    table(rows)
    return agreed


def pack_into_fp4(run: Run, text: Text, options: argparse.Namespace) -> tuple[TinyLM, float]:
    """The model with the blocks' weights in FP4, saved and loaded again, and its held-out loss."""
    import my_ops

    heading(f"Weights in FP4 ({options.format})")
    packed = copy.deepcopy(run.model)
    for block in packed.blocks:
        for module in (block.attention, block.mlp):
            for name, child in list(module.named_children()):
                if isinstance(child, Linear):
                    fp4 = my_ops.nn.FP4Linear.from_linear(child, format=options.format)
                    setattr(module, name, fp4)

    files = [options.out / "tiny_lm_fp32.pt", options.out / f"tiny_lm_{options.format}.pt"]
    for model, file in zip((run.model, packed), files, strict=True):
        torch.save(model.state_dict(), file)
    packed.load_state_dict(torch.load(files[1], weights_only=True))

    before = run.held_out[len(run.losses)]
    alone = Processes.alone(packed.embedding.weight.device)
    after = evaluate(packed, text.held_out_windows(HELD_OUT_WINDOWS), alone)
    sizes = [block_matrix_bytes(model) for model in (run.model, packed)]
    table(
        [
            ("", "fp32", options.format, "ratio"),
            ("blocks' matrices", *map(megabytes, sizes), f"{sizes[0] / sizes[1]:.1f}"),
            ("held-out loss", f"{before:.4f}", f"{after:.4f}", f"{after / before:.3f}"),
        ]
    )
    return packed, after


def block_matrix_bytes(model: TinyLM) -> int:
    return sum(w.nbytes for w in model.blocks.state_dict().values() if w.dim() == 2)


if __name__ == "__main__":
    raise SystemExit(main())
