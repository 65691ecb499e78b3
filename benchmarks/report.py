"""Draws the pictures and writes the tables of the results, so that no figure is typed by hand.

    python benchmarks/report.py [--check] [FOLDER ...]

Of each folder of JSON (all of benchmarks/results by default) it makes a picture for each operator
and README.md with every row; of the GPU's also the blocks of the main README (readme.py), between
comments `<!-- speed:begin -->` and `<!-- speed:end -->`. --check writes nothing and tells what is
not up to date.
"""

import argparse
from pathlib import Path

import pictures
import readme
from results import RESULTS, ROOT, case_name, figure, label, load, verdict

README = ROOT / "README.md"
GPU = RESULTS / "h200"


def main(command: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=sorted(RESULTS.glob("*/")))
    parser.add_argument("--check", action="store_true", help="write nothing, tell what is stale")
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--gpu", type=Path, default=GPU, help="results for the README")
    options = parser.parse_args(command)
    stale = []
    for folder in options.folders:
        results = load(folder)
        if not options.check:
            for operator, result in results.items():
                pictures.draw(result, folder / f"{operator}.png")
        stale += update(folder / "README.md", page(results), options.check)
    text = options.readme.read_text()
    new = readme.with_blocks(text, load(options.gpu)) if options.gpu.is_dir() else text
    stale += update(options.readme, new, options.check)
    for path in stale:
        print(f"{path} is not what its results say: run python benchmarks/report.py")
    return 1 if stale else 0


def update(path: Path, text: str, check: bool) -> list[Path]:
    """Writes the text, or lists the path where it is another."""
    if check:
        return [] if path.exists() and path.read_text() == text else [path]
    path.write_text(text)
    return []


def page(results: dict) -> str:
    parts = [
        "# Results",
        "Written by `benchmarks/report.py` from the JSON beside it. Times are medians, with the"
        " 10th and the 90th percentile in brackets.",
    ]
    for operator, result in results.items():
        drawn = any(row["results"] for row in result["rows"])
        parts += [f"## {operator}", f"![{operator}]({operator}.png)" * drawn]
        parts += [about(result), bar_table(result)]
        for group, formula in result["formulas"].items():
            rows = [row for row in result["rows"] if row["group"] == group]
            if rows:
                parts.append(f"### {operator}: {group}\n\n{formula}\n\n{row_table(rows)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def about(result: dict) -> str:
    machine = result["machine"]
    gpu = machine.get("gpu", {})
    facts = [machine["name"], f"torch {machine['torch']}"]
    if machine["device"] == "cpu":
        facts += [f"{machine['threads']} threads", f"load {machine['load']} at the start"]
    else:
        facts += [f"CUDA {machine['cuda']}", f"driver {gpu.get('driver_version', 'unknown')}"]
        facts += [f"{key} {value}" for key, value in gpu.items() if isinstance(value, str)][1:]
        facts += [f"{key} {value} under load" for key, value in gpu.get("busy", {}).items()]
    facts += [f"{name} {version}" for name, version in machine["peers"].items() if version]
    facts += [f"commit {machine['commit']}", machine["date"]]
    text = f"`{machine['command']}`: {', '.join(facts)}."
    if rest := max((row.get("rest_s", 0) for row in result["rows"]), default=0):
        text += f" Where operations are counted, the GPU rests {rest} s before a function's turn."
    return text if result["complete"] else f"{text} **The run was cut off.**"


def bar_table(result: dict) -> str:
    bars = [(case_name(row), bar) for row in result["rows"] for bar in row["bars"]]
    bars += [("all rows", bar) for bar in result["summaries"]]
    if not bars:
        return ""
    met = sum(bar["met"] is True for _, bar in bars)
    lines = [
        f"{met} of {len(bars)} bars are met.\n",
        "| case | bar | value | |",
        "|---|---|---|---|",
    ]
    for case, bar in bars:
        value = "none" if bar["value"] is None else f"{bar['value']:.4g}"
        mark = f"**{verdict(bar)}**" if bar["met"] is False else verdict(bar)
        lines.append(f"| {case} | {bar['name']} | {value} | {mark} |")
    return "\n".join(lines)


def row_table(rows: list[dict]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["results"]))
    lines = [f"| case | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for row in rows:
        found = [row_cell(row["results"].get(name), row) for name in names]
        notes = [*row["wrong"], *([row["left_out"]] if "left_out" in row else [])]
        case = ": ".join([label(row["params"]), *notes]).replace("|", "\\|")
        lines.append(f"| {case} | {' | '.join(found)} |")
    return "\n".join(lines)


def row_cell(result: dict | None, row: dict) -> str:
    if result is None:
        return ""
    text = figure(result, row).replace("|", "\\|")
    if "median_us" not in result:
        return text
    spread = f"{result['median_us']:.4g} ({result['p10_us']:.4g}-{result['p90_us']:.4g}) us"
    return spread if text.endswith(" us") else f"{text}, {spread}"


if __name__ == "__main__":
    raise SystemExit(main())
