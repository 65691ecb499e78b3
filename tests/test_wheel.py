"""What `make wheel` looks at: the GPU code in a compiled module, read without a CUDA toolkit."""

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import my_ops
from my_ops import _build_info

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import cuda_toolchain  # noqa: E402
import fatbin  # noqa: E402
import release_wheel  # noqa: E402


@pytest.mark.skipif(not _build_info.cuda, reason="a build without CUDA")
def test_compiled_module_has_code_of_every_kernel_for_every_target():
    codes = fatbin.read(Path(my_ops._C.__file__))
    found = {(code.source, code.target) for code in codes}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cu")}
    wanted = release_wheel.targets(_build_info.architectures.replace(" ", ";"))
    assert found == {(source, target) for source in sources for target in wanted}
    assert all(code.stored_bytes > 100 for code in codes)


@pytest.mark.parametrize(
    "kind, architecture, flags, target, compressed",
    [
        (2, 80, 0x11, "sm_80", False),
        (2, 90, 0x108011, "sm_90a", True),
        (2, 120, 0x1200011, "sm_120f", False),
        (1, 100, 0x8011, "compute_100", True),
    ],
)
def test_entries(kind, architecture, flags, target, compressed):
    header = struct.pack("<HHIQ6IQ", kind, 0x101, 64, 24, 20, 0, 0, architecture, 0, 0, flags)
    entry = header.ljust(64, b"\0") + bytes(24)
    section = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
    (code,), length = fatbin._entry(section, 16)
    assert code == fatbin.Code("", target, 24, compressed)
    assert length == len(entry)


def test_targets_of_a_list_of_architectures():
    assert release_wheel.targets("8.0;9.0a;10.0+PTX") == {
        *("sm_80", "sm_90a", "sm_100"),
        "compute_100",
    }
    supported = release_wheel.targets(cuda_toolchain.DEFAULT_ARCHITECTURES)
    assert {re.sub(r"\D", "", target) for target in supported} == {"80", "90", "100", "120"}


def test_what_is_no_module_is_refused(tmp_path):
    (tmp_path / "text").write_text("not a module")
    command = [sys.executable, ROOT / "tools" / "fatbin.py", tmp_path / "text"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "fatbin.py: expected a 64-bit little-endian ELF file\n"


def test_too_large_a_wheel_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(release_wheel, "ROOT", tmp_path)
    wheel = tmp_path / "my_ops.whl"
    wheel.write_bytes(bytes(2_000_000))
    release_wheel.check_size(wheel)
    monkeypatch.setattr(release_wheel, "LIMIT_MB", 1)
    with pytest.raises(SystemExit, match=r"expected at most 1 MB, got 2\.0"):
        release_wheel.check_size(wheel)
