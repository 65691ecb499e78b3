"""What every benchmark shares: a timer, the copy rate to compare with, a table."""

import dataclasses
import platform
import time

import torch
from torch.utils.benchmark import Timer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclasses.dataclass(frozen=True)
class Seconds:
    """The median of the repetitions, and the tenth and ninetieth percentile."""

    median: float
    p10: float
    p90: float


def measure(function) -> Seconds:
    """Times `function()` on DEVICE; on a GPU with events and a cold L2, on a CPU by the clock."""
    if DEVICE == "cuda":
        from triton.testing import do_bench

        p10, median, p90 = do_bench(function, warmup=50, rep=200, quantiles=[0.1, 0.5, 0.9])
        return Seconds(median / 1e3, p10 / 1e3, p90 / 1e3)
    timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
    times = timer.blocked_autorange(min_run_time=0.5)
    ordered = sorted(times.times)
    return Seconds(
        times.median, ordered[len(ordered) // 10], ordered[(9 * (len(ordered) - 1)) // 10]
    )


def call_overhead(function, calls: int = 2000, rounds: int = 5) -> float:
    """Seconds of host time for a call whose own work is negligible: the best of a few rounds."""
    for _ in range(calls // 10):
        function()
    best = float("inf")
    for _ in range(rounds):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def copy_bytes_per_second(numel: int = 1 << 29) -> float:
    """Bytes read and written in a second by torch's copy: the ceiling of a streaming kernel."""
    source = torch.randn(numel if DEVICE == "cuda" else numel >> 5, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / measure(lambda: target.copy_(source)).median


def print_header(title: str, *columns: str) -> None:
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else platform.processor() or "CPU"
    threads = "" if DEVICE == "cuda" else f", {torch.get_num_threads()} threads"
    print(f"\n{title}  [{name}{threads}, torch {torch.__version__}]")
    print_row(*columns)


def print_row(*cells) -> None:
    """The first cell is a name, the others are right-aligned."""
    name, *rest = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"{name:<34}" + "".join(f"{cell:>16}" for cell in rest), flush=True)
