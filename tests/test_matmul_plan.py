"""How matmul and fp4_linear cut a product into tiles and slices: pure functions, checked over many
shapes."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "check", ["matmul_plan_check.cpp", "fp4_plan_check.cpp", "fp4_order_check.cpp"]
)
def test_plans(tmp_path, check):
    compiler = shutil.which("c++") or pytest.skip("no host compiler")
    program = str(tmp_path / "check")
    source = str(ROOT / "tests" / check)
    flags = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "csrc")]
    subprocess.run([compiler, *flags, source, "-o", program], check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
