"""The layout of the repository: each operator has all its files, short ones, and is listed."""

import re
from pathlib import Path

import pytest

import my_ops

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(path.name for path in (ROOT / "csrc").iterdir() if path.is_dir())
ROOMS.remove("common")

LINE_LIMITS = {".cu": 400, ".cpp": 200, ".h": 200, ".cuh": 200}
PYTHON_OPERATOR_LINE_LIMIT = 250

# These launch for themselves, in clusters: they know nothing of torch, so that their kernels can be
# built and timed alone. They take the stream and return the error, which their callers check.
TORCH_FREE_LAUNCHERS = {"csrc/rmsnorm/forward_launch.cuh", "csrc/rmsnorm/backward_launch.cuh"}

# Atomics whose result does not depend on the order of the threads, by file.
ORDERLESS_ATOMICS = {
    "csrc/fp4/fp4_amax.cuh": "atomicMax",  # of the bits of floats that are not negative
    "csrc/fp4_matmul/fused_mail.cuh": "atomicAdd",  # who is the last of those that arrive
    "csrc/rmsnorm/forward_tiles_ring.cuh": "atomicExch",  # the first of two to be added up
    "csrc/rmsnorm/forward_tiles_sums.cuh": "atomicAdd",  # who takes which tile
}

SOURCES = sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in LINE_LIMITS)


def lines(path):
    return path.read_text().splitlines()


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_complete(room):
    folder = ROOT / "csrc" / room
    assert (folder / f"{room}.h").exists()
    assert (folder / f"{room}.cpp").exists()
    assert (folder / f"{room}_cpu.cpp").exists()
    assert list(folder.glob(f"{room}_*cuda.cu"))
    assert (ROOT / "my_ops" / "ops" / f"{room}.py").exists()
    assert (ROOT / "benchmarks" / f"bench_{room}.py").exists()
    assert list((ROOT / "tests").glob(f"test_{room}*.py"))
    assert f'#include "{room}/{room}.h"' in (ROOT / "csrc" / "module.cpp").read_text()


@pytest.mark.parametrize("name", my_ops.__all__)
def test_public_name_is_documented(name):
    assert getattr(my_ops, name).__doc__
    if name[0].islower() and name != "nn":
        assert f"`{name}`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_source_is_short_and_says_what_it_holds(path):
    text = lines(path)
    assert len(text) <= LINE_LIMITS[path.suffix]
    assert text[0].startswith("// ")
    if path.suffix in (".h", ".cuh"):
        assert "#pragma once" in text
    if path.name != "module.cpp":
        assert not any("torch/extension.h" in line for line in text)


@pytest.mark.parametrize("path", sorted((ROOT / "my_ops").rglob("*.py")), ids=relative)
def test_python_is_short_and_says_what_it_holds(path):
    text = lines(path)
    assert len(text) <= PYTHON_OPERATOR_LINE_LIMIT
    assert text[0].startswith('"""')


def test_no_two_sources_share_an_object_file():
    stems = [relative(path.with_suffix("")) for path in SOURCES if path.suffix in (".cpp", ".cu")]
    assert len(stems) == len(set(stems))


def included_by(path, seen):
    """Adds to `seen` the files of csrc that `path` includes, itself among them."""
    if path not in seen:
        seen.add(path)
        for name in re.findall(r'#include "(.+)"', path.read_text()):
            included_by(ROOT / "csrc" / name, seen)
    return seen


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".cu"], ids=relative)
def test_kernels_are_compiled_without_large_headers(path):
    """nvcc would parse them once for the host and for each architecture: see tensor_view.h."""
    large = r"(ATen|c10|torch)/(?!headeronly/(util|macros)/)|cooperative_groups|(cub|cuda|thrust)/"
    for file in included_by(path, set()):
        headers = re.findall(r"#include <(.+)>", file.read_text())
        assert not [name for name in headers if re.match(large, name)], relative(file)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_what_needs_no_torch_includes_none(path):
    head = re.match(r"(//.*\n)+", path.read_text())[0].replace("\n// ", " ")
    if re.search(r"[Nn]eeds no torch\b", head):
        for file in included_by(path, set()):
            assert not re.search(r"#include <(ATen|c10|torch)/", file.read_text()), relative(file)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_kernels_are_launched_through_launch(path):
    """common/launch.cuh takes the current stream and checks the launch; nothing else launches."""
    text = path.read_text()
    if relative(path) in TORCH_FREE_LAUNCHERS:
        assert not re.search(r"<<<|ATen/|c10/", text)
        assert "cudaStream_t stream" in text
    elif path != ROOT / "csrc" / "common" / "launch.cuh":
        assert not re.search(r"<<<|cudaLaunch\w*Kernel|cuLaunchKernel", text)


def test_errors_of_torch_free_launchers_are_checked():
    for launcher in TORCH_FREE_LAUNCHERS:
        include = f'#include "{launcher.removeprefix("csrc/")}"'
        (caller,) = [path for path in SOURCES if include in path.read_text()]
        checked = re.findall(r"MY_OPS_CUDA_CHECK\((?:launch_|\w+\.launch)\w*\(", caller.read_text())
        called = re.findall(r"\b(?:launch_|\w+\.launch)\w*\(", caller.read_text())
        assert len(checked) == len(called) > 0


def test_flags_that_change_numbers_or_break_with_another_torch():
    flags = (ROOT / "setup.py").read_text()
    assert not re.search(r"use_fast_math|-std=|-ffast-math|-rdc", flags)
    assert "-ffp-contract=off" in flags


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix in (".cu", ".cuh")], ids=relative)
def test_no_atomics_whose_order_shows(path):
    atomics = set(re.findall(r"\batomic[A-Z]\w*|\batomic_ref|\b(?:red|atom)\.\w", path.read_text()))
    assert atomics == set(filter(None, [ORDERLESS_ATOMICS.get(relative(path))]))
