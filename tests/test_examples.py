"""Every example runs as a person runs it: a program of its own, from another folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("options", [("--precision", "fp32"), ("--precision", "fp4")])
def test_train_tiny_lm(tmp_path, options):
    """A few steps: the losses agree with plain PyTorch's (exit code 0) and fall; all is written."""
    out = run("train_tiny_lm.py", "--steps", 12, "--out", tmp_path, *options, cwd=tmp_path)
    assert "TOO LARGE" not in out
    held_out = float(re.search(r"held-out text +([0-9.]+)", out).group(1))
    assert held_out < 4.5  # 5.55 is knowing nothing: ln 256
    assert {f.name for f in tmp_path.iterdir()} >= {
        "loss.png",
        "tiny_lm_fp32.pt",
        "tiny_lm_nvfp4.pt",
    }
    full, packed = (tmp_path / f"tiny_lm_{name}.pt" for name in ("fp32", "nvfp4"))
    assert packed.stat().st_size < full.stat().st_size / 3
    assert "A sample from the FP4 model" in out


def test_train_tiny_lm_compiled(tmp_path):
    """--compile means fullgraph: a break in the graph would be an error."""
    run("train_tiny_lm.py", "--steps", 2, "--compile", "--out", tmp_path, cwd=tmp_path)
