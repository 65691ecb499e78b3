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
    own_names = {name.split("::")[-1] for name in sanitize_cases.kernels()}
    assert own_names >= sanitize.BULK_COPY_KERNELS
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
========= Error: Race reported between Write access at void my_ops::{0}<float>(A)+0x90 in a.cuh:4
=========     and Read access at void my_ops::{1}<float>(A)+0x100 in a.cuh:9 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
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
    bulk, plain = "matmul_wgmma_kernel", "matmul_simt_kernel"
    assert judge("racecheck", RACE.format(bulk, bulk), 0) == ("", 1)
    for kernels in ((plain, plain), (plain, bulk)):
        failure, false_alarms = judge("racecheck", RACE.format(*kernels), 0)
        assert failure.startswith("1 x Error: Race reported between Write access in matmul_")
        assert false_alarms == 0
    assert judge("synccheck", RACE.format(bulk, bulk), 0)[0]


def test_a_failing_room_does_not_hide_the_next(tmp_path, monkeypatch, capsys):
    """With a compute-sanitizer that finds something in two rooms."""
    stub = tmp_path / "compute-sanitizer"
    found, clean = (text.replace("\n", "\\n").replace("'", "") for text in (INVALID, CLEAN))
    stub.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *initcheck*fp4*) printf "{found}" ;; *initcheck*rmsnorm*) exit 9 ;;\n'
        f'*) printf "{clean}" ;; esac\n'
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sanitize, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(sys, "argv", ["sanitize.py", "--tool", "initcheck", "synccheck"])
    with pytest.raises(SystemExit) as exit:
        sanitize.main()
    assert exit.value.code
    summary = capsys.readouterr().out.split("Summary\n")[1].splitlines()
    verdicts = {tuple(line.split()[:2]): line.split(maxsplit=2)[2] for line in summary}
    assert verdicts["initcheck", "rmsnorm"] == "FAILED: exit status 9"
    assert "square_kernel" in verdicts["initcheck", "fp4"]
    for room in ("square", "matmul"):
        assert verdicts["initcheck", room] == "passed"
    assert all(verdicts["synccheck", room] == "passed" for room in sanitize.ROOMS)
