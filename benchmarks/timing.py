"""Times of several functions, taken in turn, so that clocks and load that change meet all alike."""

import functools
import gc
import math
import statistics
import time

import torch

ROUNDS = 5
LONG = 0.05  # seconds
FLUSHED_BYTES = 256 << 20  # more than any GPU's L2


def in_turn(
    samplers: dict, budget: float, least: int, most: int, rest: float = 0
) -> dict[str, dict]:
    """The statistics of each sampler, for which `budget` seconds of samples are taken.

    A sampler takes a number of samples and returns as many times in seconds. Of one that takes
    long there are fewer than `least`. The GPU is idle for `rest` seconds before each turn.
    """
    counts = {}
    for name, sample in samplers.items():
        (seconds,) = sample(1)
        if seconds < LONG:
            seconds = max(statistics.median(sample(3)), 1e-7)
        enough = least if least * seconds < 10 * LONG else 3
        counts[name] = math.ceil(min(max(budget / seconds, enough), most))
    times = {name: [] for name in samplers}
    gc.disable()
    try:
        for turn in range(ROUNDS):
            for name, sample in samplers.items():
                count = counts[name] // ROUNDS + (turn < counts[name] % ROUNDS)
                time.sleep(rest)
                times[name] += sample(count)
    finally:
        gc.enable()
    return {name: summary(samples) for name, samples in times.items()}


def summary(seconds: list[float]) -> dict:
    """Median and spread, in microseconds."""
    us = sorted(1e6 * s for s in seconds)
    tenth = len(us) // 10
    spread = {
        "median_us": statistics.median(us),
        "p10_us": us[tenth],
        "p90_us": us[-1 - tenth],
        "min_us": us[0],
    }
    return {name: float(f"{value:.5g}") for name, value in spread.items()} | {"samples": len(us)}


def stream_sampler(function, device: str):
    """Calls between two events, each with a cold L2; on a CPU between two readings of the clock."""
    if device == "cpu":
        return clock_sampler(function)
    cache = _l2_filler(device)

    def sample(count):
        pairs = []
        for _ in range(4):  # the host runs ahead, so that no time of its own is measured
            cache.zero_()
        for _ in range(count):
            cache.zero_()
            pairs.append(_between_events(function))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    return sample


@functools.lru_cache(maxsize=1)
def _l2_filler(device):
    return torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)


def graph_sampler(function, calls: int, device: str):
    """function(0), function(1), ... function(calls - 1) in a CUDA graph: the time of one call.

    Each call finds its own operands, together more than L2 holds. On a CPU there are no graphs.
    """

    def all_calls():
        for i in range(calls):
            function(i)

    if device == "cpu":
        return _mean_of(clock_sampler(all_calls), calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.current_stream()):  # a capture that fails leaves its own
        with torch.cuda.graph(graph):
            all_calls()

    def sample(count):
        pairs = [_between_events(graph.replay) for _ in range(count)]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    return _mean_of(sample, calls)


def host_sampler(function, device: str, calls: int = 50):
    """The time that the host takes for a call; the work of the GPU is waited for outside of it."""

    def sample(count):
        seconds, threads = [], torch.get_num_threads()
        torch.set_num_threads(1)  # the work is too small for more
        for _ in range(count):
            start = time.perf_counter()
            for _ in range(calls):
                function()
            seconds.append((time.perf_counter() - start) / calls)
            if device != "cpu":
                torch.cuda.synchronize()
        torch.set_num_threads(threads)
        return seconds

    return sample


def clock_sampler(function):
    def sample(count):
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
        return seconds

    return sample


def _mean_of(sample, calls):
    return lambda count: [seconds / calls for seconds in sample(count)]


def _between_events(function):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    return start, end
