"""Every example runs as a person runs it: a program of its own, from another folder."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(program, *arguments, cwd, **environment):
    """The output of an example; it must exit with 0 and print nothing but its report."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / program, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def test_load_inline_square(tmp_path):
    out = run("load_inline_square.py", cwd=tmp_path)
    assert "square, square_matrix on cpu: equal to torch, bit for bit" in out
    assert "square_matrix: matrix: expected a contiguous tensor, got strides [1, 6]" in out


def test_jit_load(tmp_path):
    out = run("jit_load.py", cwd=tmp_path)
    assert "nvfp4 on cpu: 4.50 bits" in out
    assert "mxfp4 on cpu: 4.25 bits" in out
