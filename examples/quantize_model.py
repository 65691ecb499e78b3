"""Quantizes a Hugging Face model to FP4 in place, and shows what that costs and what it saves.

python examples/quantize_model.py                     a small Llama, trained here for a minute
python examples/quantize_model.py --model FOLDER      a causal model of yours, with its tokenizer

For each format: my_ops.nn.patch(model, linear="fp4"), then perplexity on real text, bytes of the
weights and time of a forward; a table, and the same as a picture in out/quantized.png.
"""

import argparse
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from report import heading, megabytes, row, table
from tiny_lm import Text
from torch import Tensor, nn
from tqdm import tqdm

import my_ops

FORMATS = ("nvfp4", "mxfp4")


@dataclass
class Result:
    name: str
    perplexity: float
    size: int  # bytes of parameters and buffers
    milliseconds: float  # of a forward of one batch


def main() -> None:
    options = parse_options()
    device = torch.device(options.device)
    model, windows = small_llama(options) if options.model is None else from_folder(options)
    model = model.to(device).eval()
    windows = windows.to(device)

    results = [measure("as it was", model, windows)]
    heading("What is replaced")
    for format in FORMATS:
        quantized = copy.deepcopy(model)
        report = my_ops.nn.patch(quantized, linear="fp4", format=format)
        row(format, str(report).splitlines()[0])
        results.append(measure(format, quantized, windows))

    heading("Before and after")
    rows = [("", "perplexity", "weights", "forward")]
    rows += [
        (r.name, f"{r.perplexity:.3f}", megabytes(r.size), f"{r.milliseconds:.1f} ms")
        for r in results
    ]
    table(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(results, options.out / "quantized.png")
    row("picture", str(options.out / "quantized.png"))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a folder that transformers can load a causal model from")
    parser.add_argument("--steps", type=int, default=200, help="training steps of the small model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def small_llama(options: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """A byte-level Llama, trained on Python's documentation, and held-out windows of that."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config).to(options.device)
    my_ops.nn.patch(model)  # its norms are trained as those of my_ops
    text = Text.load(context=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    warmup = max(1, options.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / warmup) * (1 - step / options.steps)
    )
    progress = tqdm(range(options.steps), desc="training", ncols=88)
    for step in progress:
        batch = text.batch(16, seed=0, step=step)[:, :-1].to(options.device)
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        progress.set_postfix(loss=f"{loss.item():.3f}")
    my_ops.nn.unpatch(model)
    return model, text.held_out_windows(64)[:, :-1]


def from_folder(options: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    from pydoc_data.topics import topics

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokens = tokenizer("\n\n".join(topics.values()), return_tensors="pt").input_ids[0]
    return model, tokens[: 16 * 512].view(16, 512)


@torch.no_grad()
def measure(name: str, model: nn.Module, windows: Tensor) -> Result:
    losses, seconds = [], []
    for batch in windows.split(16):
        start = time.perf_counter()
        losses.append(model(batch, labels=batch).loss.item())  # item() waits for the GPU
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}.values()
    size = sum(t.nbytes for t in tensors)
    perplexity = math.exp(sum(losses) / len(losses))
    return Result(name, perplexity, size, 1e3 * seconds[len(seconds) // 2])


def draw(results: list[Result], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = (
        ("perplexity", [r.perplexity for r in results], "{:.3f}"),
        ("weights, MB", [r.size / 1e6 for r in results], "{:.2f}"),
        ("forward of a batch, ms", [r.milliseconds for r in results], "{:.1f}"),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(9, 3), layout="constrained")
    for axis, (title, values, text) in zip(axes, panels, strict=True):
        bars = axis.bar([r.name for r in results], values, color=["#8d99ae", "#00798c", "#edae49"])
        axis.bar_label(bars, [text.format(value) for value in values], padding=2, fontsize=9)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_ylim(0, 1.15 * max(values))
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_yticks([])
    figure.suptitle("A Llama with FP4 weights", x=0.01, ha="left", fontweight="bold")
    figure.savefig(file, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
