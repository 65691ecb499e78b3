"""tools/sanitize.py: it knows every kernel, its cases reach them, and it judges a log rightly."""

import re
import sys
from pathlib import Path

import pytest

import my_ops  # noqa: F401  (the cases need it)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import sanitize  # noqa: E402
import sanitize_cases  # noqa: E402


def test_every_kernel_is_listed():
    sources = [path.read_text() for path in (ROOT / "csrc").rglob("*.cu*")]
    assert len(sanitize_cases.kernels()) == sum(len(re.findall("__global__", s)) for s in sources)
    written = re.compile(r'asm volatile\(\s*"(?:{\\n.*\s*)*(?:cp\.async|st\.shared)')
    assert sanitize.SLOT_FILES <= {
        p.name for p in (ROOT / "csrc").rglob("*.cuh") if written.search(p.read_text())
    }
    # What writes into a slot would be no false alarm elsewhere.
    assert {
        p.name for p in (ROOT / "csrc").rglob("*.cuh") if 'slot_writes.cuh"' in p.read_text()
    } == {"fused_slots.cuh", "ragged_kernel.cuh", "stretch_copies.cuh"}
    assert set(sanitize_cases.kernels().values()) <= set(sanitize.ROOMS)
    assert tuple(sanitize_cases.ROOMS) == sanitize.ROOMS
    assert {"simt::sum_slices_kernel", "tensor_core::sum_slices_kernel"} <= set(
        sanitize_cases.kernels()
    )


def test_names_of_kernels():
    is_kernel = sanitize_cases.is_kernel
    name = "void my_ops::tensor_core::sum_slices_kernel<my_ops::Tile<1>, float>(int)"
    assert is_kernel("tensor_core::sum_slices_kernel", name)
    assert not is_kernel("simt::sum_slices_kernel", name)
    fused = "void my_ops::(anonymous namespace)::rmsnorm_fp4_quantize_kernel<float>(int)"
    assert is_kernel("rmsnorm_fp4_quantize_kernel", fused)
    assert not is_kernel("fp4_quantize_kernel", fused)


@pytest.mark.cuda
@pytest.mark.parametrize("room", sanitize.ROOMS)
def test_the_cases_of_a_room_reach_its_kernels(room):
    wanted = {name for name, where in sanitize_cases.kernels().items() if where == room}
    assert sanitize_cases.reached([room]) >= wanted


CLEAN = "========= COMPUTE-SANITIZER\nsquare: done\n========= ERROR SUMMARY: 0 errors\n"
INVALID = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void my_ops::square_kernel<(bool)0, (int)1, float>(const T3 *)+0x90 in s.cu:30
=========     by thread (31,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at {0}+0x90 in {1}:4
=========     and Read access at void my_ops::load_run<(my_ops::A)1>(T2 (&)[T4])+0x10 in a.cuh:9
=========     and Read access at {2}+0x100 in {3}:9 [508 hazards]
=========\x20
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
DIVERGENT = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at void my_ops::consume<my_ops::Tile<(int)6>, (int)1>(const A &)+0x10 in k.cuh:9
=========     by thread (352,0,0) in block (8,0,0)
=========         Device Frame: void my_ops::(anonymous namespace)::fp4_kernel<T>(A)+0x20 in k.cuh:9
=========\x20
========= ERROR SUMMARY: 1 error
"""


def test_logs():
    judge = sanitize.judge
    assert judge("memcheck", CLEAN, 0) == ("", 0)
    assert judge("memcheck", CLEAN, 1) == ("exit status 1", 0)
    assert judge("memcheck", "square: done\n", 0) == ("the tool gave no summary", 0)
    assert judge("memcheck", INVALID, 0) == (
        "1 x Invalid __global__ read of size 4 bytes in square_kernel",
        0,
    )
    assert judge("memcheck", CLEAN.replace("0 errors", "3 errors"), 0) == ("3 errors", 0)
    hazards = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"
    assert judge("racecheck", hazards, 0) == ("2 errors", 0)
    two = INVALID + INVALID.replace("read of size 4", "write of size 2")
    assert judge("memcheck", two, 0) == (
        "1 x Invalid __global__ read of size 4 bytes in square_kernel; "
        "1 x Invalid __global__ write of size 2 bytes in square_kernel",
        0,
    )
    assert judge("synccheck", DIVERGENT, 0) == (
        "1 x Barrier error detected. Divergent thread(s) in block. in fp4_kernel",
        0,
    )


def test_races():
    """One that writes into a slot behind an mbarrier on one side is counted apart."""
    judge = sanitize.judge
    copy = "my_ops::sm90::bulk_copy(unsigned int, const void *)", "sm90_bulk_copy.cuh"
    plain = "my_ops::Slice<(my_ops::A)1>::set(int, const my_ops::V<(int)4> &) const", "x_kernel.cuh"
    assert judge("racecheck", RACE.format(*copy, *plain), 0) == ("", 1)
    failure = "1 x Error: Race reported between Write access in Slice::set, load_run"
    assert judge("racecheck", RACE.format(*plain, *plain), 0) == (failure, 0)
    failure = (
        "1 x Error: Race reported between Write access in Slice::set, load_run, sm90::bulk_copy"
    )
    assert judge("racecheck", RACE.format(*plain, *copy), 0) == (failure, 0)
    all_copies = RACE.format(*plain, *copy).replace("a.cuh", copy[1])
    assert judge("racecheck", all_copies, 0) == ("", 1)
    assert judge("memcheck", all_copies, 0)[0]
    by_threads = "void my_ops::copy_to_slot<(int)16>(unsigned int)", "slot_writes.cuh"
    assert judge("racecheck", RACE.format(*by_threads, *plain), 0) == ("", 1)
    own_bytes = RACE.format(*plain, *plain).replace("Slice<", "StagedSlice<")
    assert judge("racecheck", own_bytes, 0) == ("", 1)
    assert judge("memcheck", own_bytes, 0)[0]


@pytest.fixture
def main(tmp_path, monkeypatch, capsys):
    """Runs the tool with a compute-sanitizer that is a script; returns its verdicts."""

    def run(script, *tools):
        stub = tmp_path / "compute-sanitizer"
        stub.write_text(f"#!/bin/sh\n{script}")
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(sanitize, "LOGS", tmp_path / "logs")
        monkeypatch.setattr(sys, "argv", ["sanitize.py", "--tool", *tools])
        with pytest.raises(SystemExit) as exit:
            sanitize.main()
        summary = capsys.readouterr().out.split("Summary\n")[1].splitlines()
        columns = len("  synccheck  "), len("  synccheck  fp4_matmul    ")
        verdicts = {
            (line[: columns[0]].strip(), line[columns[0] : columns[1]].strip()): line[columns[1] :]
            for line in summary
        }
        assert bool(exit.value.code) == any(text != "passed" for text in verdicts.values())
        return verdicts

    return run


def printed(log):
    text = log.replace("\n", "\\n").replace("'", "")
    return f'printf "{text}"'


def test_a_failing_room_does_not_hide_the_next(main):
    """With something found in two rooms."""
    verdicts = main(
        f'case "$*" in *initcheck*fp4*) {printed(INVALID)} ;; *initcheck*rmsnorm*) exit 9 ;;\n'
        f"*) {printed(CLEAN)} ;; esac\n",
        *("initcheck", "synccheck"),
    )
    assert verdicts["initcheck", "rmsnorm"] == "FAILED: exit status 9"
    assert "square_kernel" in verdicts["initcheck", "fp4"]
    for room in ("square", "matmul"):
        assert verdicts["initcheck", room] == "passed"
    assert all(verdicts["synccheck", room] == "passed" for room in sanitize.ROOMS)


def test_what_only_all_rooms_together_show_is_a_failure(main):
    together = " ".join(sanitize.ROOMS)
    script = f'case "$*" in *"{together}"*) {printed(INVALID)} ;; *) {printed(CLEAN)} ;; esac\n'
    verdicts = main(script, "memcheck")
    assert verdicts.pop(("memcheck", "all together")).startswith("FAILED: 1 x Invalid __global__")
    assert verdicts == {("memcheck", room): "passed" for room in sanitize.ROOMS}


def test_how_the_tool_is_started(main):
    """Without the allocator's cache; those that follow mbarriers with room for all of them."""
    script = (
        'test "$PYTORCH_NO_CUDA_MEMORY_CACHING" = 1 || exit 3\n'
        'test "$NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS" -ge 1000000000 || exit 5\n'
        'case "$*" in *"--tool memcheck"*) ;; *"--num-cuda-barriers 65536"*) ;; *) exit 4 ;; esac\n'
        f"{printed(CLEAN)}\n"
    )
    assert set(main(script, "memcheck", "racecheck", "synccheck").values()) == {"passed"}


def test_a_tool_that_does_not_end(main, monkeypatch):
    monkeypatch.setattr(sanitize, "TIMEOUT_S", 0.2)
    verdicts = main("exec sleep 60\n", "memcheck")
    assert set(verdicts.values()) == {"FAILED: no end after 0.2 s"}
