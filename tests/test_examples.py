"""Every example runs as a person runs it: a program of its own, from another folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"


def run(program, *arguments, cwd, launcher=()):
    """The output of an example; it must exit with 0 and print nothing but its report."""
    done = subprocess.run(
        [
            *("timeout", "600", sys.executable, *launcher),
            *(ROOT / "examples" / program, *map(str, arguments)),
        ],
        cwd=cwd,
        # Two pytest processes on two cores: more threads only wait for each other.
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
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


def test_custom_op_walkthrough(tmp_path):
    out = run("custom_op_walkthrough.py", cwd=tmp_path)
    assert "softcap on cpu: values, gradients, schema and fake are right" in out
    assert "Bad input raises: softcap: cap: expected a positive number, got -1" in out
    first, last = re.search(r"compiled once for 3 batch sizes; loss (\S+) -> (\S+)", out).groups()
    assert float(last) < float(first) / 2
    assert "exported with walkthrough.softcap.default" in out


def test_quantize_model(tmp_path):
    pytest.importorskip("transformers")
    out = run("quantize_model.py", "--steps", 8, "--device", "cpu", cwd=tmp_path)
    assert "nvfp4       replaced 37 modules, skipped 1" in out  # 9 norms, 28 linears; not the head
    rows = re.findall(r"^  (as it was|nvfp4|mxfp4) +(\S+) +(\S+) MB +\S+ ms$", out, re.MULTILINE)
    before, *after = [(float(perplexity), float(size)) for _, perplexity, size in rows]
    assert len(after) == 2
    for perplexity, size in after:
        assert perplexity == pytest.approx(before[0], rel=0.1)
        assert size < before[1] / 4
    assert (tmp_path / "out" / "quantized.png").read_bytes().startswith(b"\x89PNG")


def test_jit_load(tmp_path):
    out = run("jit_load.py", cwd=tmp_path)
    assert "nvfp4 on cpu: 4.50 bits" in out
    assert "mxfp4 on cpu: 4.25 bits" in out


def losses(out):
    """The table of losses: its rows' numbers by label."""
    rows = re.findall(r"^  (first .*? steps|last .*? steps|held-out text) +(.*)   ok$", out, re.M)
    return {label: [float(number) for number in numbers.split()] for label, numbers in rows}


@pytest.mark.parametrize(
    "options",
    [(), ("--precision", "fp4", "--format", "mxfp4"), ("--precision", "fp4", "--compile")],
    ids=lambda options: " ".join(options) or "defaults",
)
def test_train_tiny_lm(options, tmp_path, device):
    """The program itself compares with plain PyTorch and exits with 1 beyond its tolerance."""
    steps = 12 if "--compile" in options else 30
    out = run("train_tiny_lm.py", "--steps", steps, "--device", device, *options, cwd=tmp_path)
    table = losses(out)
    assert list(table) == ["first 10 steps", f"last {min(steps, 20)} steps", "held-out text"]
    ours, theirs, difference, tolerance = table["held-out text"]
    assert ours < 3.2, "ln 256 = 5.55 at the start"
    assert difference == pytest.approx(abs(ours - theirs), abs=2e-4)
    assert difference < tolerance

    format = "mxfp4" if "mxfp4" in options else "nvfp4"
    before, after, _ = re.search(r"held-out loss +(\S+) +(\S+) +(\S+)\n", out).groups()
    assert float(after) == pytest.approx(float(before), abs=0.05)
    assert "A sample from the FP4 model\n  The " in out

    files = {file.name: file.stat().st_size for file in (tmp_path / "out").iterdir()}
    assert set(files) == {"loss.png", "tiny_lm_fp32.pt", f"tiny_lm_{format}.pt"}
    assert files["tiny_lm_fp32.pt"] > 4 * files[f"tiny_lm_{format}.pt"]
    assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
ON_GPUS = [
    f"--parallel {parallel} --precision {precision}{compiled}"
    for parallel in ("fsdp", "tp")
    for precision in ("fp32", "fp4")
    for compiled in ("", " --compile")
] + ["--parallel ddp --precision fp32"]


@pytest.mark.parametrize(
    "options",
    [
        "--parallel tp --precision fp4 --device cpu",
        *(pytest.param(o, marks=two_gpus) for o in ON_GPUS),
    ],
)
def test_train_tiny_lm_under_torchrun(options, tmp_path):
    """Two processes agree with plain PyTorch in one, and only one of them reports."""
    steps = 2 if "cpu" in options else 30
    arguments = "train_tiny_lm.py", "--steps", steps, *options.split()
    out = run(*arguments, cwd=tmp_path, launcher=TORCHRUN)
    assert f"processes   2, {options.split()[1]}\n" in out
    assert len(losses(out)) == 3
    for heading in ("Training with my_ops", "Training with plain PyTorch", "A sample", "Files"):
        assert len(re.findall(f"^{heading}", out, re.MULTILINE)) == 1
    assert (tmp_path / "out" / "loss.png").exists()


def test_parallel_needs_torchrun(tmp_path):
    with pytest.raises(AssertionError, match="--parallel tp: start it with torchrun"):
        run("train_tiny_lm.py", "--parallel", "tp", cwd=tmp_path)


def test_train_tiny_lm_in_plain_torch(tmp_path):
    """The reference alone needs no my_ops, and has nothing to compare with."""
    out = run("train_tiny_lm.py", "--steps", 1, "--backend", "torch", cwd=tmp_path)
    assert "Training with plain PyTorch" in out
    assert "my_ops beside" not in out


def test_train_tiny_lm_seed_decides_everything(tmp_path):
    arguments = "train_tiny_lm.py", "--steps", 3, "--backend", "torch", "--seed"
    first, again, other = (run(*arguments, seed, cwd=tmp_path) for seed in (1, 1, 2))
    assert first == again
    assert sample(first) != sample(other)


def sample(out):
    return out.partition("A sample")[2].partition("Files")[0]
