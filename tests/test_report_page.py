"""python -m my_ops: the page with versions and self-checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import my_ops
from my_ops import __main__ as page

ROOT = Path(__file__).resolve().parent.parent


def test_page():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-m", "my_ops"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"my_ops {my_ops.__version__} in " in result.stdout
    assert f"running {torch.__version__}" in result.stdout
    assert result.stdout.count("all operators are right") == 1 + torch.cuda.device_count()


@pytest.mark.parametrize(
    "capability, architectures, expected",
    [
        ((9, 0), "8.0;9.0a", True),
        ((9, 0), "8.0", False),
        ((8, 9), "8.0", True),
        ((8, 0), "8.6", False),
        ((9, 0), "8.0+PTX", True),
        ((10, 3), "10.0a", False),
        ((10, 3), "9.0a+PTX", False),  # PTX for 9.0a stays with 9.0
        ((12, 1), "8.0;9.0a;10.0a;12.0+PTX", True),
        ((7, 5), "8.0+PTX", False),
    ],
)
def test_code_for_a_gpu(capability, architectures, expected):
    assert page.has_code_for(capability, architectures) == expected


@pytest.mark.parametrize("architectures", ["9.0", "8.0+PTX", "8.0;9.0a"])
def test_a_build_without_the_kernels_of_hopper_says_so(monkeypatch, capsys, architectures):
    monkeypatch.setattr(page._build_info, "architectures", architectures)
    monkeypatch.setattr(page._build_info, "cuda", "13.0")
    monkeypatch.setattr(page, "checks", lambda device: [])
    for name, value in [("device_count", 1), ("get_device_capability", (9, 0))]:
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    assert page.main() == 0
    assert ("TORCH_CUDA_ARCH_LIST=9.0a" in capsys.readouterr().out) == ("9.0a" not in architectures)


def test_a_wrong_operator_is_named(monkeypatch, capsys):
    monkeypatch.setattr(my_ops, "matmul", lambda a, b: a @ b * 1.001)
    assert page.main() == 1
    output = capsys.readouterr().out
    assert "cpu: WRONG" in output and "matmul: relative error 1.0e-03, expected 1e-05" in output
    assert "pip install" in output
