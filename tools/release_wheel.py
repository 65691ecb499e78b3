"""Builds a release wheel in dist/ and shows that it is whole: `make wheel`.

The wheel has machine code for every architecture that my_ops supports, compressed, and its version
says which torch it fits (my_ops-0.1.0+torch2.14.cu130). Its size and its GPU code are printed, a
size above the limit or code that is missing is an error. Then it is installed into a new
environment that sees this one's torch, and runs there, outside of the source tree.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

import cuda_toolchain
import fatbin
import torch

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
BUILD = ROOT / "build" / "wheel"

LIMIT_MB = 60  # PyPI takes up to 100
CUDA = os.environ.get("MY_OPS_CUDA") != "0" and torch.version.cuda is not None


def targets(architectures: str) -> set[str]:
    """What TORCH_CUDA_ARCH_LIST's syntax asks for: sm_80 is machine code, compute_80 PTX."""
    found = set()
    for name in architectures.split(";"):
        number = name.partition("+")[0].replace(".", "")
        found |= {f"sm_{number}", f"compute_{number}"} if "+PTX" in name else {f"sm_{number}"}
    return found


def build() -> Path:
    """The wheel. Object files stay in build/wheel for the next time."""
    for stale in BUILD.glob("lib*"):
        shutil.rmtree(stale)
    shutil.rmtree(DIST, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    minor = ".".join(torch.__version__.split(".")[:2])
    platform = f"cu{torch.version.cuda.replace('.', '')}" if CUDA else "cpu"
    options = {
        "MY_OPS_CUDA": str(int(CUDA)),
        "TORCH_CUDA_ARCH_LIST": cuda_toolchain.DEFAULT_ARCHITECTURES,
        "NVCC_APPEND_FLAGS": "--compress-mode=size",
        "LDFLAGS": "-Wl,--strip-debug",
    }
    command = [sys.executable, "-u", "setup.py", "-q", "build", f"--build-base={BUILD}"]
    command += ["egg_info", f"--egg-base={BUILD}", f"--tag-build=+torch{minor}.{platform}"]
    command += ["bdist_wheel", f"--dist-dir={DIST}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **options}, check=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check_size(wheel: Path) -> None:
    size = wheel.stat().st_size / 1e6
    print(f"{wheel.relative_to(ROOT)}: {size:.1f} MB of at most {LIMIT_MB}")
    if size > LIMIT_MB:
        sys.exit(f"release_wheel.py: expected at most {LIMIT_MB} MB, got {size:.1f}")


def check_gpu_code(module: Path) -> None:
    codes = fatbin.read(module)
    print(fatbin.table(codes))
    loose = [code for code in codes if not code.compressed]
    if loose:
        sys.exit(
            f"release_wheel.py: expected compressed code, got {loose[0]} and {len(loose) - 1} more"
        )
    wanted = targets(cuda_toolchain.DEFAULT_ARCHITECTURES)
    for source in sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cu")):
        missing = wanted - {code.target for code in codes if code.source == source}
        if missing:
            sys.exit(
                f"release_wheel.py: {source}: expected code for {wanted}, got none for {missing}"
            )


def try_outside(wheel: Path, folder: Path) -> None:
    """python -m my_ops and the example of the README, where Python cannot find the source."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    site = sysconfig.get_paths(vars={"base": str(folder / "venv")})["purelib"]
    (Path(site) / "torch_of_the_builder.pth").write_text(sysconfig.get_paths()["purelib"])
    example = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[1]
    example += f"\nassert my_ops.__file__.startswith({str(folder)!r}), my_ops.__file__\n"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    for arguments in (
        ["-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)],
        ["-m", "my_ops"],
        ["-c", example],
    ):
        subprocess.run([python, *arguments], cwd=folder, env=environment, check=True)
    print("installed and run outside of the source tree")


def main() -> None:
    wheel = build()
    check_size(wheel)
    with tempfile.TemporaryDirectory(prefix="my_ops_wheel_") as folder:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.startswith("my_ops/_C.") and ".so" in n]
            module = Path(archive.extract(name, folder))
        if CUDA:
            check_gpu_code(module)
        try_outside(wheel, Path(folder))


if __name__ == "__main__":
    main()
