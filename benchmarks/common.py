"""What every benchmark shares: a timer, a check, the copy rate to compare with, a table."""

import platform
import time

import torch
from torch.utils.benchmark import Timer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(function) -> float:
    """Median seconds of `function()` on DEVICE; on a GPU with events and a cold L2."""
    if DEVICE == "cuda":
        from triton.testing import do_bench

        return do_bench(function, warmup=50, rep=200, return_mode="median") / 1e3
    timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.5).median


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """What is timed is right: its error is that of rounding to its dtype, or of float32 sums."""
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    bound = max(torch.finfo(actual.dtype).eps, 1e-5)
    assert error < bound, f"relative error {error:.3g}, at most {bound:.3g} expected"


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
    return 2 * source.nbytes / measure(lambda: target.copy_(source))


def print_header(title: str, *columns: str) -> None:
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else platform.processor() or "CPU"
    threads = "" if DEVICE == "cuda" else f", {torch.get_num_threads()} threads"
    print(f"\n{title}  [{name}{threads}, torch {torch.__version__}]")
    print_row(*columns)


def print_row(*cells) -> None:
    """The first cell is a name, the others are right-aligned."""
    name, *rest = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"{name:<34}" + "".join(f"{cell:>16}" for cell in rest), flush=True)
