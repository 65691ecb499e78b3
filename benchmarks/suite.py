"""What every benchmark shares: groups of cases, the bars that they are held to, JSON results.

A case is a set of functions that do the same work. Each is checked, then all are timed in turn, and
the row is written before the next case begins: a run that is cut off leaves what it measured.
"""

import argparse
import gc
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import machine
import results
import timing
import torch
from bars import Bar, Summary

SECONDS = {False: 0.05, True: 0.015}  # of samples for each function, by --quick
SAMPLES = {False: (10, 100), True: (5, 20)}
# Seconds of rest before a function's turn where operations count. Tensor cores at work draw more
# power than they may for long, the clock falls within 45 ms, and without a rest a function has the
# clock that the one before it left: fp4_linear with 128 rows of x, 8192 x 8192, 33.5 us, rested
# 28.1 (after 3 ms 29.7, after 10 ms 30.2), and cuBLAS 37.4 and 36.8.
REST = 0.03
# Functions that compile or come from other packages are left out when this share of --limit is
# gone, so that our own are all timed.
LATE = 0.6
MUCH_MEMORY = 16 << 30  # after a case: something in a cycle holds its tensors


@dataclass
class Lazy:
    """A function that has to be prepared (imported, compiled, run forward), which may fail."""

    prepare: Callable[[], Callable]


@dataclass
class Case:
    """Functions by name, ours first, and what is known of their work."""

    functions: dict[str, Callable | Lazy]
    check: Callable[[object], None]
    bytes: float = 0  # that must be read and written
    flops: float = 0
    copy: torch.Tensor | None = None  # torch's copy of it is timed as well: the ceiling
    how: str = "stream"  # "stream", "graph" (functions take an index below `calls`) or "host"
    calls: int = 1
    bars: Iterable[Bar] = ()


@dataclass
class Values:
    """Numbers that are no times, such as errors."""

    values: dict[str, float]
    unit: str
    bars: Iterable[Bar] = ()


@dataclass
class Group:
    name: str
    function: Callable
    grid: dict

    def cases(self, scale: str) -> list[dict]:
        lists = [v.get(scale, ()) if isinstance(v, dict) else v for v in self.grid.values()]
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*lists)]


class Suite:
    """The benchmark of one operator.

    A group is a function of the device and one value of each of its parameters that returns a Case;
    the first line of its docstring is the formula of its bytes or operations. The values of a
    parameter are a list, or one for each scale: "gpu", "gpu quick", "cpu", "cpu quick". A scale
    that is not there leaves the group out.
    """

    def __init__(self, operator: str, summaries: Iterable[Summary] = ()):
        self.operator = operator
        self.summaries = summaries
        self.groups: list[Group] = []

    def group(self, **grid):
        def add(function):
            self.groups.append(Group(function.__name__.replace("_", " "), function, grid))
            return function

        return add

    def main(self) -> None:
        parser = arguments()
        parser.add_argument("--only", nargs="+", metavar="GROUP", help="leave out other groups")
        options = parser.parse_args()
        raise SystemExit(not self.run(options))

    def run(self, options) -> bool:
        """Times everything, writes the JSON after every case; whether our results were right."""
        return Run(self, options).run()


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer samples and shapes")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    parser.add_argument("--limit", type=float, default=150, help="seconds for one operator")
    return parser


@dataclass
class Run:
    suite: Suite
    options: argparse.Namespace
    result: dict = field(default_factory=dict)

    def run(self) -> bool:
        options, suite = self.options, self.suite
        self.device, self.start, self.asked = options.device, time.perf_counter(), 0.0
        if self.device == "cpu" and not options.quick:
            torch.set_num_threads(2)  # the bars of the CPU are for two
        scale = ("cpu" if self.device == "cpu" else "gpu") + (" quick" if options.quick else "")
        only = [name.replace("_", " ") for name in getattr(options, "only", None) or ()]
        groups = [group for group in suite.groups if not only or group.name in only]
        cases = [(group, params) for group in groups for params in group.cases(scale)]
        # The limit may cut off the other dtypes.
        cases.sort(key=lambda case: case[1].get("dtype", torch.bfloat16) != torch.bfloat16)
        self.result = {
            "operator": suite.operator,
            "machine": machine.describe(self.device),
            "quick": options.quick,
            "complete": False,
            "formulas": {g.name: (g.function.__doc__ or "").split("\n")[0] for g in groups},
            "rows": [],
        }
        self.path = self.folder() / f"{suite.operator}.json"
        print(f"\n{suite.operator} on {self.result['machine']['name']}, {len(cases)} cases")
        for number, (group, params) in enumerate(cases, 1):
            row = self.row(group, params)
            self.result["rows"].append(row)
            self.save()
            print(f"[{number:>3}/{len(cases)} {self.elapsed():>4.0f} s] {line(row)}", flush=True)
        self.result["complete"] = not only and not any("left_out" in r for r in self.result["rows"])
        self.result["seconds"] = round(self.elapsed(), 1)
        self.save(last=True)
        print(self.path)
        wrong = [row for row in self.result["rows"] if row["wrong"]]
        for row in wrong:
            print("WRONG:", line(row))
        return not wrong

    def folder(self) -> Path:
        """Quick results go to out/, so that they never replace the ones that are kept."""
        default = results.ROOT / "out/benchmarks" if self.options.quick else results.RESULTS
        folder = self.options.out or default / machine.slug(self.device)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def save(self, last: bool = False) -> None:
        rows, quick = self.result["rows"], self.options.quick
        self.result["summaries"] = [
            summary.result(rows, quick)
            for summary in self.suite.summaries
            if summary.bar.on == self.device and summary.rows(rows)
        ]
        # nvidia-smi takes its time
        if self.device != "cpu" and (last or self.elapsed() - self.asked > 10):
            self.result["machine"]["gpu"]["busy"] = machine.gpu(machine.GPU_STATE)
            self.asked = self.elapsed()
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.result, indent=1) + "\n")
        os.replace(partial, self.path)

    def row(self, group: Group, params: dict) -> dict:
        row = {"group": group.name, "params": named(params), "wrong": [], "results": {}, "bars": []}
        if self.elapsed() > self.options.limit:
            return row | {"left_out": "the time limit was reached"}
        if self.device != "cpu":
            torch.compiler.reset()  # else torch.compile gives up after a few shapes
        torch.manual_seed(0)
        try:
            case = group.function(self.device, **params)
        except Exception as error:  # such as too little memory: the other cases may still fit
            row["wrong"].append(message(error))
            return row
        if isinstance(case, Values):
            row["unit"] = case.unit
            row["results"] = {name: {"value": value} for name, value in case.values.items()}
        else:
            rest = REST if case.flops and self.device != "cpu" else 0
            row |= {"how": case.how, "bytes": case.bytes, "flops": case.flops, "rest_s": rest}
            row["results"] = self.time(case, rest, row["wrong"])
        row["bars"] = [
            bar.result(row, self.options.quick) for bar in case.bars if bar.on == self.device
        ]
        del case
        if self.device != "cpu":
            if torch.cuda.memory_allocated() > MUCH_MEMORY:
                gc.collect()
            torch.cuda.empty_cache()
        return row

    def time(self, case: Case, rest: float, wrong: list) -> dict:
        outcome, samplers, seconds = {}, {}, {}
        for name, function in case.functions.items():
            ours = name.startswith("my_ops")
            start = time.perf_counter()
            try:
                if isinstance(function, Lazy):
                    late = self.elapsed() > LATE * self.options.limit
                    if late and not ours and name != "torch":
                        raise TimeoutError("left out, the time limit is near")
                    function = function.prepare()
                case.check(function(0) if case.how == "graph" else function())
                sampler = self.sampler(case, function)
                sampler(1)  # what raises when it is captured or timed raises here
                samplers[name] = sampler
            except Exception as error:  # a peer may raise anything; it must not end the run
                outcome[name] = {"error": message(error)}
                if ours:
                    wrong.append(f"{name}: {message(error)}")
            seconds[name] = round(time.perf_counter() - start, 2)
        if case.copy is not None:
            target = torch.empty_like(case.copy)
            samplers["copy"] = timing.stream_sampler(lambda: target.copy_(case.copy), self.device)
        quick = self.options.quick
        timed = timing.in_turn(samplers, SECONDS[quick], *SAMPLES[quick], rest)
        for name, times in timed.items():
            work = 2 * case.copy.nbytes if name == "copy" else case.bytes
            outcome[name] = times | rates(work, case.flops, times["median_us"])
        for name in seconds:
            outcome[name]["setup_s"] = seconds[name]
        return {name: outcome[name] for name in [*case.functions, "copy"] if name in outcome}

    def sampler(self, case: Case, function):
        if case.how == "graph":
            return timing.graph_sampler(function, case.calls, self.device)
        if case.how == "host":
            return timing.host_sampler(function, self.device)
        return timing.stream_sampler(function, self.device)


def message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:200]


def rates(bytes: float, flops: float, us: float) -> dict:
    rates = {}
    if bytes:
        rates["GB/s"] = float(f"{bytes / us / 1e3:.5g}")
    if flops:
        rates["TFLOP/s"] = float(f"{flops / us / 1e6:.5g}")
    return rates


def named(params: dict) -> dict:
    """Parameters as JSON has them: dtypes by name, tuples as text."""
    return {key: plain(value) for key, value in params.items()}


def plain(value):
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    return value


def line(row: dict) -> str:
    """A row as it is printed: what, the functions with their figures, the bars."""
    cells = [results.case_name(row), *row["wrong"]]
    if "left_out" in row:
        return f"{cells[0]}  {row['left_out']}"
    cells += [f"{name} {results.figure(result, row)}" for name, result in row["results"].items()]
    for bar in row["bars"]:
        value = "-" if bar["value"] is None else f"{bar['value']:.3g}"
        cells.append(f"[{bar['name']}: {value}, {results.verdict(bar)}]")
    return "  ".join(cells)


def rotations(nbytes: int, device: str) -> int:
    """How many operands of `nbytes` are together more than L2 holds (an H200's: 60 MB).

    No more than 200: a graph of so many calls is long enough, and its small operands are hot.
    """
    return 2 if device == "cpu" else min(max(2, math.ceil((300 << 20) / nbytes)), 200)


def close(actual: torch.Tensor, expected: torch.Tensor, bound: float | None = None) -> None:
    """The error is that of rounding to actual's dtype, or of sums in float32."""
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    bound = bound or max(torch.finfo(actual.dtype).eps, 1e-5)
    assert error < bound, f"relative error {error:.3g}, at most {bound:.3g} expected"
