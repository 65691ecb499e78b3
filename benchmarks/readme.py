"""The tables of the main README, made of the results of a GPU: which rows stand there, and how."""

import re
from dataclasses import dataclass

LIBRARIES = {"liger": "Liger", "quack": "QuACK", "humming": "Humming", "torchao": "torchao"}


@dataclass(frozen=True)
class Line:
    """A line of the README's table: one row of a result, in a unit."""

    text: str
    operator: str
    group: str
    params: dict
    unit: str = "% of copy"
    ours: tuple[str, ...] = ("my_ops",)
    theirs: tuple[str, ...] = ("torch", "torch.compile", "liger", "quack", "torchao")


def norm(group: str, H: int) -> Line:
    text = {
        "forward": "`rmsnorm`",
        "backward": "`rmsnorm` backward",
        "add forward": "`add_rmsnorm`",
        "add backward": "`add_rmsnorm` backward",
    }[group]
    return Line(f"{text}, bf16, {H} columns", "rmsnorm", group, {"dtype": "bfloat16", "H": H})


def quantized(text: str, group: str, **params) -> Line:
    params = {"dtype": "bfloat16", "format": "nvfp4"} | params
    return Line(text, "fp4", group, {k: v for k, v in params.items() if v}, theirs=FP4_PEERS)


FOLDER = "benchmarks/results/h200"
PICTURES = ("rmsnorm", "matmul", "fp4", "fp4_matmul")
FP4_PEERS = ("torch.compile", "torchao", "bitsandbytes")
LINEAR_PEERS = ("torch", "humming nvfp4", "bitsandbytes")
SPEED = [
    Line("`square`, bf16", "square", "forward", {"dtype": "bfloat16"}),
    Line("`square` backward, bf16", "square", "backward", {"dtype": "bfloat16"}),
    *(norm(group, H) for group in ("forward", "backward") for H in (4096, 131072)),
    *(norm(group, 4096) for group in ("add forward", "add backward")),
    quantized("`fp4_quantize` to NVFP4, amax given, bf16", "quantize rows"),
    quantized("`fp4_quantize` to MXFP4, bf16", "quantize rows", format="mxfp4"),
    quantized("`fp4_quantize` to NVFP4, bf16", "quantize with amax", format=None),
    quantized("`fp4_dequantize` from NVFP4, bf16", "dequantize"),
    quantized("`rmsnorm_fp4_quantize`, bf16", "rmsnorm quantize"),
    *(
        Line(
            f"`fp4_linear`, 8192 x 8192 NVFP4, {M} row{'s' * (M > 1)} of bf16",
            "fp4_matmul",
            "linear layer",
            {"dtype": "bfloat16", "M": M},
            "us",
            ours=("my_ops nvfp4",),
            theirs=LINEAR_PEERS,
        )
        for M in (1, 64, 1024)
    ),
    Line(
        "`fp4_matmul`, n = 8192, bf16, quantization included",
        "fp4_matmul",
        "forward",
        {"n": 8192},
        "TFLOP/s",
        ours=("my_ops nvfp4",),
    ),
    *(
        Line(
            f"a call of `{operator}`, {text}",
            "overhead",
            "call",
            {"operator": operator, "mode": mode},
            "us",
        )
        for operator in ("square", "rmsnorm")
        for mode, text in (("eager", "no gradient"), ("gradient", "gradient recorded"))
    ),
]
PRECISIONS = {  # how float32 is multiplied
    "ieee": "in float32, on the CUDA cores",
    "bf16x6": "as three bfloat16 each, six products",
    "fp16x3": "as two scaled float16 each, three products",
    "tf32": "rounded to 11 bits",
}


def with_blocks(text: str, results: dict) -> str:
    """The README with its blocks made anew; a block without results stays as it is."""
    for name, block in (("speed", speed_block(results)), ("precision", precision_block(results))):
        if block is None:
            continue
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"report.py: expected one {begin} and one {end} in the README")
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        whole = f"{begin}\n{block}\n{end}".replace("\\", r"\\")
        text = re.sub(pattern, whole, text, flags=re.DOTALL)
    return text


def speed_block(results: dict) -> str | None:
    if not results:
        return None
    lines = ["| | my_ops | others |", "|---|---|---|"]
    for line in SPEED:
        row = find(results.get(line.operator), line.group, line.params)
        if row:
            ours, theirs = (cells(row, names, line.unit) for names in (line.ours, line.theirs))
            lines.append(f"| {line.text} | {ours} | {theirs} |")
    machines = [result["machine"] for result in results.values()]
    runs = []
    for torch in sorted({machine["torch"] for machine in machines}):
        commits = {(m["commit"] or "?")[:12] for m in machines if m["torch"] == torch}
        plural = "s" if len(commits) > 1 else ""
        runs.append(f"torch {torch}, commit{plural} {', '.join(sorted(commits))}")
    copy = find(results.get("square"), "forward", {"dtype": "bfloat16"})
    rate = f" ({copy['results']['copy']['GB/s'] / 1e3:.2f} TB/s)" if copy else ""
    note = (
        f"Medians on one {machines[0]['name']}, {'; '.join(runs)}. Percentages are of the rate of a"
        f" large copy{rate}, over the bytes that must move; others were timed in the same run, in"
        " turn. Every row, the losing ones too, with its spread: [benchmarks/results]"
        f"({FOLDER}/README.md)."
    )
    shown = [f"![{op}]({FOLDER}/{op}.png)" for op in PICTURES if op in results]
    return "\n".join(lines) + "\n\n" + "\n\n".join([note, *shown]) + "\n"


def find(result: dict | None, group: str, params: dict) -> dict | None:
    for row in result["rows"] if result else ():
        if row["group"] == group and params.items() <= row["params"].items() and row["results"]:
            return row
    return None


def cells(row: dict, names: tuple[str, ...], unit: str) -> str:
    """torch 61 %, QuACK 96 %; ours without the name."""
    texts = []
    for name in names:
        result, ours = row["results"].get(name, {}), name.startswith("my_ops")
        prefix = "" if ours else LIBRARIES.get(name.split(" ")[0], name) + " "
        if ours or "median_us" in result:
            texts.append(prefix + in_unit(result, row, unit))
    return ", ".join(texts)


def in_unit(result: dict, row: dict, unit: str) -> str:
    if "median_us" not in result:
        return "failed"
    if unit == "us":
        return f"{result['median_us']:.3g} us"
    if unit == "TFLOP/s":
        return f"{result['TFLOP/s']:.3g} TFLOP/s"
    return f"{100 * result['GB/s'] / row['results']['copy']['GB/s']:.0f} %"


def precision_block(results: dict) -> str | None:
    rows = {
        n: find(results.get("matmul"), "square", {"n": n, "layout": "NN"}) for n in (4096, 8192)
    }
    errors = find(results.get("matmul"), "errors", {"kind": "normal", "K": 4096})
    if not errors or not all(rows.values()):
        return None
    speeds = [row["results"] for row in rows.values()]
    title = f"TFLOP/s on an H200, n = {', '.join(map(str, rows))}"
    lines = [
        f"| `precision` | float32 is multiplied | relative error, N(0, 1), K = 4096 | {title} |",
        "|---|---|---|---|",
    ]
    named = {f"my_ops {p}": (f'`"{p}"`', how) for p, how in PRECISIONS.items()}
    named["torch"] = "", "by `torch.mm`, in float32"
    for name, columns in named.items():
        rates = ", ".join(in_unit(speed[name], {}, "TFLOP/s").split(" ")[0] for speed in speeds)
        error = f"{errors['results'][name]['value']:.1e}"
        lines.append(f"| {' | '.join((*columns, error, rates))} |")
    return "\n".join(lines)
