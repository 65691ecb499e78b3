"""Result files: where they are, what their rows are called, how figures are written."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
OPERATORS = sorted(path.stem[6:] for path in RESULTS.parent.glob("bench_*.py"))


def load(path: Path) -> dict[str, dict]:
    """By operator, the results of a file or of a folder."""
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    results = [json.loads(file.read_text()) for file in files]
    return {result["operator"]: result for result in results}


def label(params: dict) -> str:
    """bfloat16, H 4096"""
    return ", ".join(v if isinstance(v, str) else f"{k} {v}" for k, v in params.items())


def case_name(row: dict) -> str:
    return f"{row['group']}, {label(row['params'])}"


def figure(result: dict, row: dict) -> str:
    """The figure that a row is about, with its unit."""
    if "error" in result:
        return f"({result['error'][:60]})"
    if "value" in result:
        return f"{result['value']:.3g} {row['unit']}"
    if row["how"] == "stream":
        for unit in ("GB/s", "TFLOP/s"):
            if unit in result:
                return f"{result[unit]:.4g} {unit}"
    return f"{result['median_us']:.4g} us"


def verdict(bar: dict) -> str:
    """Quick runs are not judged."""
    return {True: "met", False: "missed", None: "not judged"}[bar["met"]]
