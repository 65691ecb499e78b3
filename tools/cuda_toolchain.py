"""Finds the CUDA compiler that fits the installed torch: for setup.py, the Makefile, examples.

python tools/cuda_toolchain.py            say what was found; exit 1 when there is none
python tools/cuda_toolchain.py --install  install nvcc from PyPI where none was found
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

# Without a GPU to ask: one entry for each generation with tensor cores that PyTorch supports.
# 9.0a has wgmma and 10.0a and 12.0a convert FP4 in hardware; the PTX serves chips in between.
DEFAULT_ARCHITECTURES = "8.0;9.0a;10.0a;12.0a+PTX"

# A g++ that brings libstdc++ as an archive would put a second copy of it into the process, and its
# streams would crash on torch's; hidden, the copy keeps to itself. (Seen with the H200's g++.)
LINK_FLAGS = ["-Wl,--exclude-libs,libstdc++.a"]


@dataclasses.dataclass(frozen=True)
class Toolchain:
    cuda_home: Path
    version: str
    include_dirs: list[str]
    library_dirs: list[str]

    def configure_environment(self) -> None:
        """Tells torch.utils.cpp_extension where the compiler is and what to compile for.

        Call it before the first import of torch.utils.cpp_extension, which reads CUDA_HOME once.
        """
        os.environ["CUDA_HOME"] = str(self.cuda_home)
        if not os.environ.get("TORCH_CUDA_ARCH_LIST"):
            os.environ["TORCH_CUDA_ARCH_LIST"] = default_architectures()


def torch_cuda_major() -> int | None:
    """The CUDA major version that torch was built with; None for a CPU build."""
    return int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None


def default_architectures() -> str:
    """The visible GPUs' architectures, with the suffix that opens their own instructions."""
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    names = [f"{major}.{minor}{'a' if major >= 9 else ''}" for major, minor in sorted(capabilities)]
    return ";".join(names) or DEFAULT_ARCHITECTURES


def find() -> Toolchain | None:
    """A CUDA compiler of torch's CUDA major version, or None."""
    major = torch_cuda_major()
    if major is None:
        return None
    wheel = _torch_cuda_wheel(major)
    for home in (
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        wheel,
        _home_of(shutil.which("nvcc")),
        "/usr/local/cuda",
    ):
        version = _nvcc_version(home)
        if version and version.split(".")[0] == str(major):
            return Toolchain(Path(home), version, _include_dirs(wheel), _library_dirs(wheel))
    return None


def install_command() -> list[str]:
    """pip's arguments for a compiler and headers of exactly torch's CUDA version."""
    version = ".".join(torch.version.cuda.split(".")[:2])
    return ["install", f"cuda-toolkit[nvcc,cccl,crt]=={version}.*"]


def _torch_cuda_wheel(major: int) -> Path | None:
    """The folder in which torch's own wheels (and PyPI's nvcc) keep CUDA."""
    for root in (Path(torch.__file__).parent.parent, Path(sysconfig.get_paths()["purelib"])):
        folder = root / "nvidia" / f"cu{major}"
        if folder.is_dir():
            return folder
    return None


def _home_of(nvcc: str | None) -> Path | None:
    """The toolkit behind `nvcc`, which can be a wrapper script somewhere else."""
    if nvcc is None:
        return None
    dry_run = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    here = re.search(r"_HERE_=(.+)", dry_run.stdout + dry_run.stderr)
    return Path(here.group(1).strip()).parent if here else None


def _nvcc_version(home: str | Path | None) -> str | None:
    nvcc = Path(home or "") / "bin" / "nvcc"
    if home is None or not nvcc.exists():
        return None
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+\.\d+)", output)
    return release.group(1) if release else None


def _include_dirs(wheel: Path | None) -> list[str]:
    # A system toolkit can lack what torch's headers include (cusparse.h); torch's wheels have it.
    return [str(wheel / "include")] if wheel else []


def _library_dirs(wheel: Path | None) -> list[str]:
    # torch's wheels have libcudart.so.13 alone, and the linker looks for libcudart.so.
    versioned = sorted((wheel / "lib").glob("libcudart.so.*")) if wheel else []
    if not versioned:
        return []
    folder = Path(__file__).resolve().parent.parent / "build" / "cudart"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "libcudart.so"
    if not (link.is_symlink() and link.resolve() == versioned[0].resolve()):
        link.unlink(missing_ok=True)
        link.symlink_to(versioned[0])
    return [str(folder)]


def main() -> int:
    if torch_cuda_major() is None:
        print(f"torch {torch.__version__} is a CPU build: no CUDA compiler is needed")
        return 0
    if find() is None and "--install" in sys.argv[1:]:
        print(f"no nvcc for CUDA {torch.version.cuda}: installing it from PyPI", flush=True)
        subprocess.run([sys.executable, "-m", "pip", *install_command()], check=True)
    toolchain = find()
    if toolchain is None:
        command = " ".join(install_command()).replace("cuda-toolkit", "'cuda-toolkit") + "'"
        print(f"no nvcc for CUDA {torch.version.cuda}; install one with: pip {command}")
        return 1
    print(f"nvcc {toolchain.version} in {toolchain.cuda_home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
