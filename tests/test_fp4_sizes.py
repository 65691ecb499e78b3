"""The sizes of the tests of fp4_linear and of the sanitizer reach the kernels that they are for, by
the plans of an H200 (fp4_kernel_of.h), which change with what is measured."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_fp4_linear
import test_fp4_linear_boxes
import test_fp4_linear_parts

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import sanitize_cases  # noqa: E402

BLOCK = {"nvfp4": 16, "mxfp4": 32}
# Of the fused kernel by rows of x in a tile; panels and boxes by tiles and groups.
EVERY_KERNEL = {
    *("gemv slices, aligned", "gemv slices, ragged"),
    *("gemv, flat", "gemv, flat, tail", "gemv, pitch", "gemv, pitch, tail"),
    *(f"box panels, {tiles} tiles, 1 groups" for tiles in (2, 4)),
    *(f"box panels, {tiles} tiles, 2 groups" for tiles in (2, 4, 7)),
    *("box panels, 4 tiles, 3 groups", "box panels, 2 tiles, 4 groups"),
    *("stretches, 1 groups", "stretches, 2 groups"),
    *(f"ragged panels, {tiles} tiles, {groups} groups" for tiles in (2, 3) for groups in (1, 2)),
    "panels, 2 tiles, 1 groups",
    *(f"panels, {tiles} tiles, 2 groups" for tiles in (2, 4, 7)),
    *(f"stream, {n} steps{rows}" for n in (1, 2) for rows in ("", ", columns", ", ragged")),
    *(f"fused {tokens}" for tokens in (16, 32, 64, 128, 192, 256)),
    *(f"fused {tokens}, ragged" for tokens in (16, 32, 64, 128, 192, 256)),
    *(f"fused {tokens}, boxes" for tokens in (32, 64, 128)),
    *(f"fused {tokens}, parts{rows}" for tokens in (64, 128) for rows in ("", ", ragged")),
}


@pytest.fixture(scope="module")
def kernels_of(tmp_path_factory):
    """kernels_of(sizes): of each (M, K, N) in both formats."""
    compiler = shutil.which("c++") or pytest.skip("no host compiler")
    program = str(tmp_path_factory.mktemp("plans") / "order")
    include = "-I", str(ROOT / "csrc")
    source = str(ROOT / "tests" / "fp4_order_check.cpp")
    subprocess.run([compiler, "-O1", "-std=c++17", *include, source, "-o", program], check=True)

    def ask(sizes):
        cases = [(size, format) for size in sizes for format in BLOCK]
        numbers = [str(n) for size, format in cases for n in (*size, BLOCK[format])]
        lines = subprocess.run([program, *numbers], capture_output=True, text=True, check=True)
        return dict(zip(cases, lines.stdout.splitlines(), strict=True))

    return ask


def instance(kernel):
    """Without what a kernel is told when it is launched."""
    kernel = re.sub(r", \d splits|, later tiles|, 1 parts", "", kernel)
    return re.sub(r", \d parts", ", parts", kernel)


def missed(kernels, format):
    reached = {instance(kernel) for (_, of), kernel in kernels.items() if of == format}
    return sorted(EVERY_KERNEL - reached)


@pytest.mark.parametrize("format", BLOCK)
def test_every_kernel_is_reached(kernels_of, format):
    tests = test_fp4_linear
    sizes = [*tests.LARGE, *tests.RAGGED, *tests.BOX_PANELS, *tests.MANY_ROWS]
    sizes += test_fp4_linear_boxes.SIZES + test_fp4_linear_parts.SIZES
    assert not missed(kernels_of(sizes), format)


@pytest.mark.parametrize("format", BLOCK)
def test_the_sanitizer_reaches_every_kernel(kernels_of, format):
    sizes = [(M, K, N) for M, N, K in sanitize_cases.LINEAR_SHAPES]
    assert not missed(kernels_of(sizes), format)


@pytest.mark.parametrize(
    ("sizes", "what"),
    [(test_fp4_linear_boxes.SIZES, "boxes"), (test_fp4_linear_parts.SIZES, "[23] parts")],
)
def test_sizes_are_those_of_their_kernel(kernels_of, sizes, what):
    assert not [case for case, kernel in kernels_of(sizes).items() if not re.search(what, kernel)]


def test_boxes_of_every_division(kernels_of):
    """Tiles of each size, K in one to three parts, several tiles of a block; and in MXFP4, whose
    boxes of scales are for two steps, a block that begins with the second of them."""
    kernels = set(kernels_of(test_fp4_linear_boxes.SIZES).values())
    for tokens in (32, 64, 128):
        for splits in (1, 2, 3):
            assert f"fused {tokens}, {splits} splits, 1 parts, boxes" in kernels
        assert f"fused {tokens}, 1 splits, 1 parts, boxes, later tiles" in kernels
