"""The bars that rows are held to: a figure of one function against another's, or against a number.

A bar of "cuda" is for a large GPU (an H200), one of "cpu" for two threads. In quick runs figures
are recorded and not judged.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    name: str
    measure: Callable[[dict], float]  # of a row's results
    bound: float
    at_least: bool
    on: str

    def value(self, row: dict) -> float | None:
        try:
            return self.measure(row["results"])
        except (KeyError, ZeroDivisionError):  # a function that failed or was not timed
            return None

    def result(self, row: dict, quick: bool) -> dict:
        return self.judge(self.name, self.value(row), quick)

    def judge(self, name: str, value: float | None, quick: bool) -> dict:
        met = value is not None and (value >= self.bound if self.at_least else value <= self.bound)
        sign = ">=" if self.at_least else "<="
        rounded = None if value is None else float(f"{value:.4g}")
        name = f"{name} {sign} {self.bound:g}"
        return {"name": name, "value": rounded, "met": None if quick else met}


@dataclass(frozen=True)
class Summary:
    """A bar on the geometric mean or the worst of a figure, over all rows of some groups."""

    name: str
    bar: Bar
    groups: Iterable[str]
    reduce: str = "geometric mean"
    where: Callable[[dict], bool] = lambda params: True

    def rows(self, rows: list[dict]) -> list[dict]:
        return [row for row in rows if row["group"] in self.groups and self.where(row["params"])]

    def result(self, rows: list[dict], quick: bool) -> dict:
        values = [self.bar.value(row) for row in self.rows(rows)]
        value = None
        if all(values):  # a row without a figure, and there is no mean of all
            worst = min(values) if self.bar.at_least else max(values)
            mean = math.exp(sum(map(math.log, values)) / len(values))
            value = worst if self.reduce == "worst" else mean
        name = f"{self.name}, {self.reduce}: {self.bar.name}"
        return self.bar.judge(name, value, quick) | {"rows": len(values)}


def of_copy(bound: float, ours: str = "my_ops", on: str = "cuda") -> Bar:
    """Bytes in a second over those of a copy in the same row."""
    name = f"{ours}, share of the rate of a copy"
    return Bar(name, lambda r: r[ours]["GB/s"] / r["copy"]["GB/s"], bound, True, on)


def speed(over: str, bound: float, ours: str = "my_ops", on: str = "cuda") -> Bar:
    name = f"{ours}, speed over {over}"
    return Bar(name, lambda r: r[over]["median_us"] / r[ours]["median_us"], bound, True, on)


def time_ratio(over: str, bound: float, ours: str = "my_ops", on: str = "cuda") -> Bar:
    name = f"{ours}, time over that of {over}"
    return Bar(name, lambda r: r[ours]["median_us"] / r[over]["median_us"], bound, False, on)


def microseconds(bound: float, ours: str = "my_ops", on: str = "cuda") -> Bar:
    return Bar(f"{ours}, us", lambda r: r[ours]["median_us"], bound, False, on)


def value_ratio(over: str, bound: float, ours: str = "my_ops", on: str = "cuda") -> Bar:
    name = f"{ours}, over {over}"
    return Bar(name, lambda r: r[ours]["value"] / r[over]["value"], bound, False, on)


def value(bound: float, ours: str = "my_ops", on: str = "cuda") -> Bar:
    return Bar(ours, lambda r: r[ours]["value"], bound, False, on)
