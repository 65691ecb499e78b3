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
from collections.abc import Iterator
from pathlib import Path

import torch

# cuda_fp4.h came with 12.8; cp.async and bfloat16 tensor cores with compute capability 8.0.
OLDEST_CUDA = (12, 8)
OLDEST_CAPABILITY = (8, 0)

# Without a GPU to ask: machine code for every generation, and PTX for those to come. Code for an
# architecture with an "a" (9.0a has wgmma) runs on that one alone, its PTX too. Hence the PTX is
# that of plain 10.0: it has what a host expects of a new device (clusters), and 11.0 is above it.
DEFAULT_ARCHITECTURES = "8.0;9.0a;10.0+PTX;12.0"

# nvcc's flags for them. 12.0's machine code is made from 10.0's PTX: no kernel has code of its own
# for 12.0, the instructions are the same to the last one, and one of four passes over every file is
# saved. (torch's own flags for this list have arch=compute_120,code=sm_120.)
DEFAULT_NVCC_FLAGS = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_100,code=sm_100",
    "-gencode=arch=compute_100,code=sm_120",
    "-gencode=arch=compute_100,code=compute_100",
]

# A g++ that brings libstdc++ as an archive would put a second copy of it into the process, and its
# streams would crash on torch's; hidden, the copy keeps to itself. (Seen with the H200's g++.)
LINK_FLAGS = ["-Wl,--exclude-libs,libstdc++.a"]


CUDART_FOLDER = Path(__file__).resolve().parent.parent / "build" / "cudart"


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
        _refuse_old_architectures(os.environ["TORCH_CUDA_ARCH_LIST"])
        _link_cudart(_torch_cuda_wheel(torch_cuda_major()))

    def nvcc_flags(self) -> list[str]:
        """The flags for TORCH_CUDA_ARCH_LIST, unless torch is to make them from it."""
        is_default = os.environ["TORCH_CUDA_ARCH_LIST"] == DEFAULT_ARCHITECTURES
        return DEFAULT_NVCC_FLAGS if is_default else []


def torch_cuda_major() -> int | None:
    """The CUDA major version that torch was built with; None for a CPU build."""
    return int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None


def default_architectures() -> str:
    """The visible GPUs' architectures, with the suffix that opens their own instructions."""
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    names = [f"{major}.{minor}{'a' if major >= 9 else ''}" for major, minor in sorted(capabilities)]
    return ";".join(names) or DEFAULT_ARCHITECTURES


def find() -> Toolchain | None:
    """A CUDA compiler of torch's CUDA major version and not too old, or None. Writes nothing."""
    for home, version in _compilers():
        if _numbers(version) >= OLDEST_CUDA:
            wheel = _torch_cuda_wheel(torch_cuda_major())
            return Toolchain(home, version, _include_dirs(wheel), _library_dirs(wheel))
    return None


def why_none() -> str:
    """Why find() found nothing."""
    if torch_cuda_major() is None:
        return f"torch {torch.__version__} is a CPU build."
    oldest = ".".join(map(str, OLDEST_CUDA))
    if only_old_compilers():
        home, version = next(_compilers())
        return f"my_ops needs nvcc {oldest} or newer, and {home} has {version}."
    if _numbers(torch.version.cuda) < OLDEST_CUDA:
        return (
            f"my_ops needs CUDA {oldest} or newer, and torch {torch.__version__} is built for "
            f"{torch.version.cuda}."
        )
    return f"There is no nvcc for torch {torch.__version__} (CUDA {torch.version.cuda})."


def only_old_compilers() -> bool:
    """Whether every compiler that would fit torch is too old."""
    return find() is None and next(_compilers(), None) is not None


def install_command() -> list[str]:
    """pip's arguments for a compiler and headers of exactly torch's CUDA version."""
    version = ".".join(torch.version.cuda.split(".")[:2])
    return ["install", f"cuda-toolkit[nvcc,cccl,crt]=={version}.*"]


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _compilers() -> Iterator[tuple[Path, str]]:
    """The folders and versions of compilers of torch's CUDA major version, the best first."""
    major = torch_cuda_major()
    if major is None:
        return
    for home in (
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        _torch_cuda_wheel(major),
        _home_of(shutil.which("nvcc")),
        "/usr/local/cuda",
    ):
        version = _nvcc_version(home)
        if version and _numbers(version)[0] == major:
            yield Path(home), version


def _refuse_old_architectures(architectures: str) -> None:
    for name in re.findall(r"\d+\.\d+", architectures):
        if _numbers(name) < OLDEST_CAPABILITY:
            oldest = ".".join(map(str, OLDEST_CAPABILITY))
            sys.exit(
                f"my_ops needs compute capability {oldest} or newer, and was to be built for "
                f"{architectures}: leave {name} out with TORCH_CUDA_ARCH_LIST, or build for the "
                "CPU alone with MY_OPS_CUDA=0."
            )


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
    return [str(CUDART_FOLDER)] if _versioned_cudart(wheel) else []


def _versioned_cudart(wheel: Path | None) -> Path | None:
    return next(iter(sorted((wheel / "lib").glob("libcudart.so.*"))), None) if wheel else None


def _link_cudart(wheel: Path | None) -> None:
    """torch's wheels have libcudart.so.13 alone, and the linker looks for libcudart.so."""
    library = _versioned_cudart(wheel)
    if library is None:
        return
    CUDART_FOLDER.mkdir(parents=True, exist_ok=True)
    link = CUDART_FOLDER / "libcudart.so"
    if link.resolve() != library.resolve():
        # Renamed into place: another build may be linking at this moment.
        mine = CUDART_FOLDER / f"libcudart.so.{os.getpid()}"
        mine.symlink_to(library)
        mine.replace(link)


def main() -> int:
    if torch_cuda_major() is None:
        print(f"torch {torch.__version__} is a CPU build: no CUDA compiler is needed")
        return 0
    toolchain = find()
    installable = _numbers(torch.version.cuda) >= OLDEST_CUDA
    if toolchain is None and installable and "--install" in sys.argv[1:]:
        print(f"no nvcc for CUDA {torch.version.cuda}: installing it from PyPI", flush=True)
        subprocess.run([sys.executable, "-m", "pip", *install_command()], check=True)
        toolchain = find()
    if toolchain is None:
        command, package = install_command()
        print(why_none(), f"Install one with: pip {command} '{package}'" if installable else "")
        return 1
    print(f"nvcc {toolchain.version} in {toolchain.cuda_home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
