"""The benchmarks run, write results that can be trusted, compare and report them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
OPERATORS = {path.stem.removeprefix("bench_") for path in BENCHMARKS.glob("bench_*.py")}
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{BENCHMARKS}",
    "OMP_NUM_THREADS": "1",  # on a busy machine more threads only wait for each other
    "CUDA_VISIBLE_DEVICES": "",
}
# One worker runs them all: they share one run of the benchmarks.
pytestmark = pytest.mark.xdist_group("benchmarks")


def python(*command):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of a quick run of everything, in one process."""
    folder = tmp_path_factory.mktemp("results")
    run = python(BENCHMARKS / "run.py", "--quick", "--device", "cpu", "--out", folder)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return folder


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_result_is_complete(folder, operator):
    result = json.loads((folder / f"{operator}.json").read_text())
    assert result["operator"] == operator
    assert result["complete"] is result["quick"] is True
    machine = result["machine"]
    for key in ("name", "date", "commit", "command", "torch", "my_ops", "peers"):
        assert machine[key], key
    assert result["rows"]
    for row in result["rows"]:
        assert row["wrong"] == []
        assert result["formulas"][row["group"]].endswith((".", "side", "recorded"))
        for name, figures in row["results"].items():
            check_figures(row, name, figures)
    assert any(row["bars"] for row in result["rows"]) or operator not in ("rmsnorm", "fp4")


def check_figures(row, name, figures):
    assert name == "copy" or "error" not in figures
    if "value" in figures:
        assert figures["value"] >= 0
        return
    assert 0 < figures["min_us"] <= figures["p10_us"] <= figures["median_us"] <= figures["p90_us"]
    assert figures["samples"] >= 3
    if row["bytes"] and name != "copy":
        assert figures["GB/s"] == pytest.approx(row["bytes"] / figures["median_us"] / 1e3, rel=1e-3)
    if row["flops"]:
        rate = row["flops"] / figures["median_us"] / 1e6
        assert figures["TFLOP/s"] == pytest.approx(rate, rel=1e-3)


# A benchmark of which one library is missing, one is wrong and one of our own cases is wrong.
TOY = """
import sys
import time
from bars import Summary, speed, time_ratio
from suite import Case, Lazy, Suite
fast = speed("torch", 2, on="cpu")
suite = Suite("toy", [
    Summary("all", fast, ["sleep"]),
    Summary("the first", fast, ["sleep"], "worst", lambda params: params["offset"] == 0),
    Summary("all", speed("torch", 2), ["sleep"]),
])
@suite.group(offset=[0, 1])
def sleep(device, offset):
    "1 byte: of nothing."
    def check(result):
        assert result == 3, f"got {result}, expected 3"
    def missing():
        import no_such_package
    def long(result=3):
        time.sleep(0.02)
        return result
    functions = {
        "my_ops": lambda: 3 + offset,
        "torch": long,
        "missing": Lazy(missing),
        "wrong": lambda: 4,
    }
    bars = [fast, time_ratio("torch", 1e-9, on="cpu")]
    return Case(functions, check, bytes=1, bars=[*bars, speed("torch", 2)])
@suite.group(seconds=[SECONDS])
def slow(device, seconds):
    time.sleep(seconds)
    return Case({"my_ops": lambda: 3}, lambda result: None)
suite.main()
"""


@pytest.fixture
def toy(tmp_path):
    def write(seconds):
        path = tmp_path / "bench_toy.py"
        path.write_text(TOY.replace("SECONDS", str(seconds)))
        return path

    return write


def test_a_rest_comes_before_each_turn():
    code = """
import time, timing
ends = []
def sample(count):
    ends.append(time.perf_counter())
    return [1e-3] * count
times = timing.in_turn({"a": sample, "b": sample}, 0.01, 5, 5, rest=0.02)
turns = ends[-2 * timing.ROUNDS:]
assert min(b - a for a, b in zip(turns, turns[1:])) >= 0.02, turns
assert times["a"]["samples"] == 5, times
"""
    run = python("-c", code)
    assert run.returncode == 0, run.stderr


def test_wrong_and_missing_functions_are_rows(toy, tmp_path):
    run = python(toy(0), "--device", "cpu", "--out", tmp_path)
    assert run.returncode == 1
    result = json.loads((tmp_path / "toy.json").read_text())
    right, wrong, _ = result["rows"]
    assert "WRONG: sleep, offset 1  my_ops: AssertionError: got 4, expected 3" in run.stdout
    assert right["wrong"] == []
    assert right["results"]["my_ops"]["median_us"] < right["results"]["torch"]["median_us"]
    assert right["results"]["torch"]["median_us"] == pytest.approx(20e3, rel=0.5)
    assert right["results"]["missing"]["error"] == "no_such_package is not installed"
    assert right["results"]["wrong"]["error"] == "AssertionError: got 4, expected 3"
    # The bar of another device is not held against this one.
    assert [bar["met"] for bar in right["bars"]] == [True, False]
    assert wrong["wrong"] == ["my_ops: AssertionError: got 4, expected 3"]
    assert [bar["met"] for bar in wrong["bars"]] == [False, False]
    assert wrong["bars"][0]["value"] is None
    # There is no mean of a row that failed.
    mean, worst = result["summaries"]
    assert (mean["value"], mean["met"], mean["rows"]) == (None, False, 2)
    assert (worst["value"], worst["met"], worst["rows"]) == (right["bars"][0]["value"], True, 1)
    assert worst["name"] == "the first, worst: my_ops, speed over torch >= 2"


def test_time_limit_leaves_rows_that_say_so(toy, tmp_path):
    run = python(toy(0), "--device", "cpu", "--out", tmp_path, "--limit", 0)
    assert run.returncode == 0
    result = json.loads((tmp_path / "toy.json").read_text())
    assert [row["left_out"] for row in result["rows"]] == ["the time limit was reached"] * 3
    assert result["complete"] is False
    readme = tmp_path / "readme"
    readme.write_text("")
    report = BENCHMARKS / "report.py", tmp_path, "--readme", readme, "--gpu", tmp_path / "none"
    assert python(*report).returncode == 0
    page = (tmp_path / "README.md").read_text()
    assert "**The run was cut off.**" in page
    assert page.count("the time limit was reached") == 3


def test_killed_run_leaves_what_it_measured(toy, tmp_path):
    file = tmp_path / "toy.json"
    command = [sys.executable, toy(60), "--device", "cpu", "--quick", "--out", tmp_path]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not rows(file, 2):
            time.sleep(0.1)
        process.kill()
    result = json.loads(file.read_text())
    assert len(result["rows"]) == 2
    assert result["complete"] is False


def rows(file, count):
    return file.exists() and len(json.loads(file.read_text())["rows"]) >= count


def result(median, *, spread=0.01, met=True, error=None, machine="GPU"):
    """A result with one row, in which torch takes 5 us."""
    ours = {"error": error} if error else times(median, spread)
    row = {
        "group": "forward",
        "params": {"H": 4096},
        "results": {"my_ops": ours, "torch": times(5, 0.01)},
        "bars": [{"name": "speed >= 1", "value": 5 / median, "met": met}],
    }
    versions = {"name": machine, "torch": "2.11.0", "cuda": "13.0", "triton": "3.6"}
    return {"operator": "toy", "machine": versions, "rows": [row], "summaries": []}


def times(median, spread):
    ends = {"p10_us": median * (1 - spread), "p90_us": median * (1 + spread)}
    return {"median_us": median, **ends, "samples": 50}


@pytest.mark.parametrize(
    "new, status, said",
    [
        (result(4.0), 0, []),
        (result(4.05), 0, []),  # within the spread
        (result(4.5), 1, ["forward, H 4096: my_ops slower: 4 -> 4.5 us (1.12x)"]),
        (result(3.0), 0, ["my_ops faster: 4 -> 3 us"]),
        (result(8.0, spread=0.9), 0, []),  # a noisy run shows nothing
        (result(4.0, met=False), 1, ["speed >= 1 is missed"]),
        (result(4.0, error="RuntimeError: no"), 1, ["my_ops fails: RuntimeError: no"]),
        (result(4.0, machine="another GPU"), 0, ["not alike: name was GPU, is another GPU"]),
    ],
)
def test_comparison_names_what_changed(tmp_path, new, status, said):
    (tmp_path / "old.json").write_text(json.dumps(result(4.0)))
    (tmp_path / "new.json").write_text(json.dumps(new))
    run = python(BENCHMARKS / "compare.py", tmp_path / "old.json", tmp_path / "new.json")
    assert run.returncode == status, run.stdout + run.stderr
    assert f"{status} regressions" in run.stdout
    for text in said:
        assert text in run.stdout
    assert said or run.stdout == "0 regressions\n"


def test_comparison_of_folders(folder):
    run = python(BENCHMARKS / "compare.py", folder, folder)
    assert (run.returncode, run.stdout) == (0, "0 regressions\n")
    run = python(BENCHMARKS / "compare.py", folder, folder / "none")
    assert run.returncode == 2 and "expected results in" in run.stderr


def gpu_result(operator, group, params, figures):
    """A result of a GPU with one row."""
    machine = {"name": "Some GPU", "torch": "2.11.0", "commit": "0123456789abcdef"}
    row = {"group": group, "params": params, "results": figures}
    return {"operator": operator, "machine": machine, "rows": [row]}


def test_readme_is_written_from_results_and_checked(tmp_path):
    readme, gpu = tmp_path / "README.md", tmp_path / "gpu"
    gpu.mkdir()
    readme.write_text(
        "before\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nbetween\n"
        "<!-- precision:begin -->\nkept\n<!-- precision:end -->\nafter\n"
    )
    figures = {"my_ops": {"median_us": 2.0, "GB/s": 4080.0}, "torch": {"error": "no"}}
    figures["copy"] = {"median_us": 1.9, "GB/s": 4250.0}
    for operator in ("square", "matmul"):
        result = gpu_result(operator, "forward", {"dtype": "bfloat16"}, figures)
        (gpu / f"{operator}.json").write_text(json.dumps(result))
    report = BENCHMARKS / "report.py", "--readme", readme, "--gpu", gpu
    folders = tmp_path / "no_folders"
    folders.mkdir()
    assert python(*report, "--check", folders).returncode == 1
    assert python(*report, folders).returncode == 0
    text = readme.read_text()
    assert "| `square`, bf16 | 96 % |  |" in text
    assert "one Some GPU, torch 2.11.0, commit 0123456789ab" in text
    assert "![matmul](benchmarks/results/h200/matmul.png)" in text
    assert "old" not in text and "\nkept\n" in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert python(*report, "--check", folders).returncode == 0
    readme.write_text(text.replace("96 %", "99 %"))
    run = python(*report, "--check", folders)
    assert run.returncode == 1 and "is not what its results say" in run.stdout


def test_pictures_and_page_of_a_run(folder, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("")
    run = python(BENCHMARKS / "report.py", folder, "--readme", readme, "--gpu", tmp_path / "none")
    assert run.returncode == 0, run.stderr
    page = (folder / "README.md").read_text()
    for operator in OPERATORS:
        assert (folder / f"{operator}.png").read_bytes().startswith(b"\x89PNG")
        assert f"![{operator}]({operator}.png)" in page
    for name in ("my_ops bf16x6", "odd width backward", "not judged", "in place"):
        assert name in page


def test_readme_and_pages_of_the_repository_say_what_the_results_say():
    run = python(BENCHMARKS / "report.py", "--check")
    assert run.returncode == 0, run.stdout + run.stderr
