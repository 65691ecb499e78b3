"""One picture for each operator, drawn from its results: what is drawn stands in PICTURES (of an
operator that does not stand there, the times of every group)."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

COLORS = {
    "my_ops": "#c1121f",
    "my_ops ieee": "#c1121f",
    "my_ops nvfp4": "#c1121f",
    "my_ops mxfp4": "#f4845f",
    "my_ops bf16x6": "#e76f51",
    "my_ops fp16x3": "#f4a261",
    "my_ops tf32": "#e9c46a",
    "my_ops, two calls": "#f4845f",
    "torch": "#1d4e89",
    "torch tf32": "#6fa8dc",
    "torch.compile": "#00a6a6",
    "liger": "#7b2d8b",
    "quack": "#5a8f29",
    "torchao": "#7b2d8b",
    "bitsandbytes": "#8d6e63",
    "humming nvfp4": "#5a8f29",
    "humming mxfp4": "#a3c76d",
}
MARKERS = {"my_ops": "o", "torch": "s", "torch.compile": "D", "liger": "^", "quack": "v"}
COPY = "copy"
COLUMNS = {4: 2, 8: 4}  # by the number of panels; else up to 3


@dataclass(frozen=True)
class Panel:
    """Rows of some groups. `x` names the parameter along the axis of lines; without it, bars."""

    title: str
    groups: tuple[str, ...]
    unit: str  # "GB/s", "TFLOP/s", "us", "% of copy" or that of values
    x: str | None = None
    xlabel: str = ""
    split: str | None = None  # a parameter: one panel for each of its values
    where: dict = field(default_factory=dict)
    log: bool = False


BF16 = {"dtype": "bfloat16"}
PICTURES = {
    "square": [Panel("square", ("forward", "in place", "backward"), "GB/s")],
    "rmsnorm": [
        Panel("forward", ("forward",), "GB/s", "H", "columns", "dtype"),
        Panel("backward", ("backward",), "GB/s", "H", "columns", "dtype"),
        Panel(
            "add_rmsnorm forward, bfloat16", ("add forward",), "GB/s", "H", "columns", where=BF16
        ),
        Panel(
            "add_rmsnorm backward, bfloat16", ("add backward",), "GB/s", "H", "columns", where=BF16
        ),
        Panel(
            "small, bfloat16 [rows, 4096]",
            ("small",),
            "us",
            "rows",
            "rows",
            where={"H": 4096},
            log=True,
        ),
    ],
    "matmul": [
        Panel("float32", ("square",), "TFLOP/s", "n", "M = N = K", "layout"),
        Panel("relative error", ("errors",), "relative error", "K", "K", "kind", log=True),
    ],
    "fp4": [
        Panel(
            "fp4",
            (
                "quantize rows",
                "quantize with amax",
                "quantize columns",
                "quantize with 2d scales",
                "quantize stochastically",
                "dequantize",
                "rmsnorm quantize",
            ),
            "% of copy",
            split="dtype",
        )
    ],
    "fp4_matmul": [
        Panel("fp4_linear", ("linear layer",), "us", "M", "rows of x", "dtype", log=True),
        Panel("fp4_matmul", ("forward", "packed forward", "backward"), "TFLOP/s"),
    ],
    "overhead": [Panel("us a call", ("call",), "us", split="mode", log=True)],
    "distributed": [Panel("training", ("training",), "tokens/s", split="precision")],
}


def draw(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = [Panel(group, (group,), "us") for group in result["formulas"]]
    wanted = PICTURES.get(result["operator"], groups)
    panels = [piece for panel in wanted for piece in split(panel, result)]
    if not panels:
        return  # nothing was measured
    columns = COLUMNS.get(len(panels), min(3, len(panels)))
    rows = math.ceil(len(panels) / columns)
    lengths = [
        len(bar_labels(found)) for panel, found in panels if lines_over(panel, found) is None
    ]
    height = max([3.2] + [0.9 + 0.45 * length for length in lengths])
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(max(4.6 * columns, 7), height * rows + 0.8),
        squeeze=False,
        layout="constrained",
    )
    axes = list(grid.flat)
    for axis, (panel, found) in zip(axes, panels, strict=False):
        x = lines_over(panel, found)
        draw_lines(axis, panel, found, x) if x else draw_bars(axis, panel, found)
        axis.set_title(title(panel, found), loc="left", fontsize=10, fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, axis="both" if x else "x")
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    legend(figure, axes)
    machine = result["machine"]
    figure.suptitle(
        f"{result['operator']} on {machine['name']}, torch {machine['torch']}"
        f" ({machine['date'][:10]}, {(machine['commit'] or 'no commit')[:12]})",
        fontsize=9,
        color="#555555",
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def split(panel: Panel, result: dict):
    """(panel, rows) for each value of the parameter that splits it."""
    parts = defaultdict(list)
    for row in result["rows"]:
        wanted = all(row["params"].get(k) == v for k, v in panel.where.items())
        if row["group"] in panel.groups and row["results"] and wanted:
            parts[row["params"].get(panel.split)].append(row)
    return [(panel, rows) for rows in parts.values()]


def title(panel: Panel, rows: list[dict]) -> str:
    value = rows[0]["params"].get(panel.split)
    if value is None:
        return panel.title
    return (
        f"{panel.title}, {value}"
        if isinstance(value, str)
        else f"{panel.title}, {panel.split} {value}"
    )


def lines_over(panel: Panel, rows: list[dict]) -> str | None:
    """Lines need more than one point."""
    return panel.x if panel.x and len({row["params"][panel.x] for row in rows}) > 1 else None


def points(panel: Panel, row: dict):
    """name, figure, 10th and 90th percentile of each function that has a figure."""
    for name, result in row["results"].items():
        if "error" in result or (name == COPY and panel.unit != "GB/s"):
            continue
        if "value" in result:
            yield name, result["value"], result["value"], result["value"]
            continue
        median, ends = result["median_us"], (result["p10_us"], result["p90_us"])
        if panel.unit == "us":
            yield name, median, *ends
            continue
        rate = result["GB/s" if panel.unit == "% of copy" else panel.unit]
        if panel.unit == "% of copy":
            rate *= 100 / row["results"][COPY]["GB/s"]
        yield name, rate, rate * median / ends[1], rate * median / ends[0]


def draw_lines(axis, panel: Panel, rows: list[dict], x: str) -> None:
    series = defaultdict(list)
    for row in rows:
        for name, *values in points(panel, row):
            series[name].append((row["params"][x], *values))
    for name, found in series.items():
        at, middle, low, high = zip(*sorted(found), strict=True)
        if name == COPY:
            axis.plot(at, middle, color="#888888", ls="--", lw=1.2, label="copy")
            continue
        ours = name.startswith("my_ops")
        color, marker = COLORS.get(name, "#444444"), MARKERS.get(name, "o" if ours else "s")
        line = {"lw": 2 if ours else 1.3, "ms": 4.5 if ours else 3.5, "zorder": 3 if ours else 2}
        axis.plot(at, middle, color=color, marker=marker, label=name, **line)
        axis.fill_between(at, low, high, color=color, alpha=0.15, lw=0)
    axis.set_xscale("log", base=2)
    ticks = sorted({row["params"][x] for row in rows})
    axis.set_xticks(
        ticks, [thousands(tick) for tick in ticks], rotation=45 if len(ticks) > 6 else 0
    )
    axis.minorticks_off()
    if panel.log:
        axis.set_yscale("log")
        log_ticks(axis.yaxis)
    else:
        axis.set_ylim(bottom=0)
    axis.set_xlabel(panel.xlabel, fontsize=9)
    axis.set_ylabel(panel.unit, fontsize=9)


def bar_labels(rows: list[dict]) -> dict[str, dict]:
    """Rows by what tells them apart: the group and the parameters that are not the same in all."""
    shared = {k for k in rows[0]["params"] if len({row["params"].get(k) for row in rows}) == 1}
    labels = {}
    for row in rows:
        parts = [row["group"]] if len({row["group"] for row in rows}) > 1 else []
        params = {k: v for k, v in row["params"].items() if k not in shared}
        parts += [v if isinstance(v, str) else f"{k} {thousands(v)}" for k, v in params.items()]
        labels[", ".join(parts) or row["group"]] = row
    return labels


def draw_bars(axis, panel: Panel, rows: list[dict]) -> None:
    labels = bar_labels(rows)
    for number, row in enumerate(labels.values()):
        found = list(points(panel, row))
        ceilings = [value for name, value, *_ in found if name == COPY]
        found = [point for point in found if point[0] != COPY]
        thick = 0.8 / max(len(found), 1)
        for place, (name, value, low, high) in enumerate(found):
            y = number + (place - (len(found) - 1) / 2) * thick
            color = COLORS.get(name, "#444444")
            axis.barh(y, value, height=0.92 * thick, color=color, label=name)
            error = [[max(value - low, 0)], [max(high - value, 0)]]
            axis.errorbar(value, y, xerr=error, color="#222222", lw=0.8, capsize=0)
            annotate(axis, value, y, min(7, max(4.5, 30 * thick)))
        for ceiling in ceilings:
            axis.plot(
                [ceiling] * 2, [number - 0.45, number + 0.45], "--", color="#888888", label="copy"
            )
    if panel.unit == "% of copy":
        axis.axvline(100, color="#888888", ls="--", lw=1.2)
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    if panel.log:
        smallest = min(value for row in rows for _, value, *_ in points(panel, row))
        axis.set_xscale("log")
        axis.set_xlim(left=smallest / 4)
        log_ticks(axis.xaxis)
    axis.margins(x=0.12)
    axis.set_xlabel(panel.unit, fontsize=9)


def annotate(axis, value: float, y: float, size: float) -> None:
    """The figure at the foot of its bar, where no other mark is."""
    from matplotlib.patheffects import withStroke

    axis.annotate(
        f"{value:.3g}",
        (0, y),
        xycoords=axis.get_yaxis_transform(),  # the left end, in a logarithmic axis too
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=size,
        color="white",
        path_effects=[withStroke(linewidth=1.5, foreground="#333333")],
    )


def log_ticks(axis) -> None:
    """1, 2, 5, 10, ... as plain numbers, powers of ten alone where there are many."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def legend(figure, axes) -> None:
    """One for all panels, below them."""
    handles = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if COPY in handles:
        handles[COPY] = handles.pop(COPY)  # the last
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(7, len(handles)),
        frameon=False,
        fontsize=8,
    )


def thousands(value) -> str:
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        if value % (1 << 20) == 0:
            return f"{value >> 20}M"
        return f"{value >> 10}k"
    return str(value)
