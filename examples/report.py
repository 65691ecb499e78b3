"""What train_tiny_lm.py shows: headings and tables on the terminal, loss curves in a picture."""

import os
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

INDENT = "  "
SMOOTHING = 20  # steps in the mean that a curve shows


def heading(title: str) -> None:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    print("\n" + (title if plain else f"\033[1m{title}\033[0m"), flush=True)


def row(label: str, value: str) -> None:
    print(f"{INDENT}{label:<{max(10, len(label))}}  {value}", flush=True)


def table(rows: Iterable[tuple]) -> None:
    """Prints rows of cells, the first column to the left, all others to the right."""
    rows = [[str(cell) for cell in cells] for cells in rows]
    columns = max(map(len, rows))
    width = [max((len(r[c]) for r in rows if c < len(r)), default=0) for c in range(columns)]
    for cells in rows:
        first, *others = cells
        line = [f"{first:<{width[0]}}"]
        line += [f"{cell:>{w}}" for cell, w in zip(others, width[1:], strict=False)]
        print(INDENT + "   ".join(line).rstrip(), flush=True)


def paragraph(text: str) -> None:
    """Prints generated text, with what is no printable character as a dot."""
    for line in text.splitlines():
        printable = "".join(c if c.isprintable() else "·" for c in line)
        print(textwrap.fill(printable, 86, initial_indent=INDENT, subsequent_indent=INDENT))


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


def draw_losses(runs: list, packed_loss: float | None, tolerance: float, file: Path) -> None:
    """Training and held-out losses of the runs above; of two runs, their distance below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colors = ["#d1495b", "#30638e"]
    panels = len(runs)
    figure, axes = plt.subplots(
        panels,
        1,
        figsize=(8, 4.2 + 1.9 * (panels - 1)),
        height_ratios=[3, 1.2][:panels],
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    losses = axes[0, 0]
    # The second curve lies on the first: drawn thin over thick, both are seen.
    for run, color, width in zip(runs, colors, (4.5, 1.5), strict=False):
        name, alpha = run.operators.name, 0.55 if width > 2 else 1.0
        losses.plot(
            smooth(run.losses), color=color, lw=width, alpha=alpha, label=f"{name}, training"
        )
        losses.plot(
            *zip(*run.held_out.items(), strict=True),
            color=color,
            lw=0,
            marker="o" if width > 2 else "x",
            ms=width + 3,
            alpha=alpha,
            label=f"{name}, held out",
        )
    steps = len(runs[0].losses)
    if packed_loss is not None:
        losses.plot(
            steps,
            packed_loss,
            color="#edae49",
            marker="D",
            mfc="none",
            mew=2,
            ms=11,
            lw=0,
            label="weights in FP4, held out",
        )
    losses.set_ylabel("loss, nats per byte")
    losses.set_title("A byte-level language model on my_ops", loc="left", fontweight="bold")
    losses.legend(frameon=False)

    if panels == 2:
        pairs = enumerate(zip(runs[0].losses, runs[1].losses, strict=True))
        distance = {step: abs(a - b) for step, (a, b) in pairs if a != b}
        below = axes[1, 0]
        below.semilogy(distance.keys(), distance.values(), ".", color="#555555", ms=3)
        below.axhline(tolerance, color="#d1495b", lw=1, ls="--")
        below.annotate(
            "tolerance of the final loss",
            (1, tolerance),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color="#d1495b",
        )
        below.set_ylim(1e-8, 10 * tolerance)
        below.set_ylabel("distance\nof the two")
    axes[-1, 0].set_xlabel("step")
    for axis in axes[:, 0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def smooth(values: list[float]) -> list[float]:
    """The mean over the last steps, at each step."""
    windows = (values[max(0, i + 1 - SMOOTHING) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
