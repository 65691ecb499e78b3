"""Names what got slower or faster between two results, beyond the spread of both.

    python benchmarks/compare.py OLD NEW [--least 0.02]

OLD and NEW are result files or folders of them. Exit status 1: a time of ours got worse, a bar that
was met is missed, or an operator gives an error.
"""

import argparse
from pathlib import Path

from results import case_name, load

NAMED = ("name", "torch", "cuda", "triton")  # of the machine; a difference is no change of ours


def main(command: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--least", type=float, default=0.02, help="smallest change to name")
    options = parser.parse_args(command)
    old, new = load(options.old), load(options.new)
    for path, results in ((options.old, old), (options.new, new)):
        if not results:
            parser.error(f"expected results in {path}, got none")
    regressions = []
    for operator in sorted(old.keys() | new.keys()):
        if operator not in old or operator not in new:
            print(f"{operator}: only in {options.old if operator in old else options.new}")
            continue
        for change in machine_changes(old[operator], new[operator]):
            print(f"{operator}: {change}")
        for worse, text in changes(old[operator], new[operator], options.least):
            print(f"{operator}: {text}")
            regressions += [text] * worse
    print(f"{len(regressions)} regressions")
    return 1 if regressions else 0


def machine_changes(old: dict, new: dict):
    for key in NAMED:
        before, after = old["machine"].get(key), new["machine"].get(key)
        if before != after:
            yield f"not alike: {key} was {before}, is {after}"


def changes(old: dict, new: dict, least: float):
    """(whether it is a regression, what to print) for each change."""
    before, after = by_case(old), by_case(new)
    for case in before.keys() - after.keys():
        yield False, f"{case}: not measured any more"
    for case, row in after.items():
        if case not in before:
            yield False, f"{case}: new"
            continue
        for name, result in row["results"].items():
            yield from time_change(case, name, before[case]["results"].get(name), result, least)
        yield from bar_changes(case, before[case]["bars"], row["bars"])
    yield from bar_changes("summary", old["summaries"], new["summaries"])


def by_case(result: dict) -> dict[str, dict]:
    return {case_name(row): row for row in result["rows"]}


def time_change(case: str, name: str, old: dict | None, new: dict, least: float):
    """Times whose ranges from the 10th to the 90th percentile do not touch differ."""
    ours = name.startswith("my_ops")
    if old is None:
        return
    if "error" in new and "error" not in old:
        yield ours, f"{case}: {name} fails: {new['error']}"
    if "median_us" not in old or "median_us" not in new:
        return
    ratio = new["median_us"] / old["median_us"]
    text = (
        f"{case}: {name} {{}}: {old['median_us']:.4g} -> {new['median_us']:.4g} us ({ratio:.2f}x)"
    )
    if new["p10_us"] > old["p90_us"] and ratio > 1 + least:
        yield ours, text.format("slower")
    elif new["p90_us"] < old["p10_us"] and ratio < 1 - least:
        yield False, text.format("faster")


def bar_changes(case: str, old: list[dict], new: list[dict]):
    before = {bar["name"]: bar for bar in old}
    for bar in new:
        known = before.get(bar["name"])
        if known and known["met"] is not None and bar["met"] is not None:
            if known["met"] and not bar["met"]:
                yield True, f"{case}: {bar['name']} is missed: {known['value']} -> {bar['value']}"
            elif bar["met"] and not known["met"]:
                yield False, f"{case}: {bar['name']} is met: {known['value']} -> {bar['value']}"


if __name__ == "__main__":
    raise SystemExit(main())
