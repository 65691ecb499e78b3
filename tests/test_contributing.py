"""CONTRIBUTING's copy of the square room, made by its commands: it builds and its tests pass."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_readme import blocks

import my_ops

ROOT = Path(__file__).resolve().parent.parent
COPIED = "csrc my_ops tests benchmarks docs README.md CONTRIBUTING.md setup.py".split()

BUILD = """
from pathlib import Path
from cuda_toolchain import LINK_FLAGS
from torch.utils.cpp_extension import load
csrc = Path("csrc").resolve()
sources = [*csrc.glob("cube/*.cpp"), *csrc.glob("common/*.cpp"), Path("cube_module.cpp").resolve()]
Path("room").mkdir()
load("cube_room", list(map(str, sources)), build_directory=str(Path("room").resolve()),
     extra_cflags=["-O0", "-Wall", "-Wextra", "-Werror"], extra_ldflags=LINK_FLAGS,
     extra_include_paths=[str(csrc)])
"""

# The compiled module of this checkout has the other rooms.
ADD_TO_COMPILED_MODULE = """
import cube_room
for own, other in ((_C, cube_room), (_C.ops, cube_room.ops)):
    vars(own).update({name: value for name, value in vars(other).items() if name[:4] == "cube"})
"""


def bindings_of_cube(module: str) -> str:
    """csrc/module.cpp without the other rooms, which need not be compiled once more."""
    lines = re.MULTILINE
    module = re.sub(r'^#include "(?!cube/).*\n', "", module, flags=lines)
    module = re.sub(
        r'^  (?:module_\.def|define_dispatched)[^;"]*"(?!cube)[^;]*;\n', "", module, flags=lines
    )
    return re.sub(r"^[a-z][^;{}]*\) \{\n  return my_ops::(?:.*\n)+?\}\n", "", module, flags=lines)


def run(*command, cwd, **environment):
    result = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[:3000]
    return result.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources in which the commands of CONTRIBUTING ran."""
    tree = tmp_path_factory.mktemp("contributing")
    skip = shutil.ignore_patterns("*.so", "__pycache__")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=skip)
        else:
            shutil.copy(source, tree / name)
    (commands,) = [code for _, code in blocks(tree / "CONTRIBUTING.md", "") if "csrc/cube" in code]
    run("bash", "-euc", commands, cwd=tree)
    return tree


def test_copied_room_builds_and_passes_its_tests(tree):
    for module in Path(my_ops.__file__).parent.glob("_C.*.so"):
        (tree / "my_ops" / module.name).symlink_to(module)
    bindings = bindings_of_cube((tree / "csrc" / "module.cpp").read_text())
    (tree / "cube_module.cpp").write_text(bindings)
    run(sys.executable, "-c", BUILD, cwd=tree, PYTHONPATH=str(ROOT / "tools"))
    with (tree / "my_ops" / "_load.py").open("a") as load:
        load.write(ADD_TO_COMPILED_MODULE)
    report = run(
        *(sys.executable, "-m", "pytest", "-q", "-m", "not cuda", "-k", "cube and not inductor"),
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, "--rootdir", tree),
        *("tests/test_cube.py", "tests/test_cube_cuda.py", "tests/test_rooms.py"),
        cwd=tree,
        PYTHONPATH=f"{tree}:{tree / 'room'}",
    )
    (passed,) = re.findall(r"(\d+) passed", report)
    assert int(passed) > 150
    assert "failed" not in report
