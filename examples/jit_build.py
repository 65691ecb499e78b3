"""Where torch.utils.cpp_extension finds a compiler, and where it builds: for the programs here."""

import logging
import os
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import cuda_toolchain  # noqa: E402

# Without a GPU the CUDA code is compiled to see that it compiles: one architecture is enough.
ARCHITECTURE_WITHOUT_GPU = "9.0a"


def jit_options(name: str) -> dict:
    """Keyword arguments for `load` and `load_inline`; "with_cuda" says if there is a CUDA compiler.

    Call it before the first import of torch.utils.cpp_extension, which reads CUDA_HOME once.
    """
    toolchain = None if os.environ.get("MY_OPS_CUDA") == "0" else cuda_toolchain.find()
    if toolchain is not None:
        if not torch.cuda.is_available():
            os.environ.setdefault("TORCH_CUDA_ARCH_LIST", ARCHITECTURE_WITHOUT_GPU)
        toolchain.configure_environment()
    # `python` of an environment that is not activated: its ninja is beside it, but not on the path.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # That no GPU is visible is no news: these programs say which devices they use.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)

    # A library fits one torch and one choice of CUDA, and torch's cache is keyed by neither.
    backend = "cpu" if toolchain is None else os.environ["TORCH_CUDA_ARCH_LIST"].replace(";", "_")
    folder = ROOT / "build" / "examples" / f"{name}-torch{torch.__version__}-{backend}"
    folder.mkdir(parents=True, exist_ok=True)
    macros = [] if toolchain is None else ["-DMY_OPS_WITH_CUDA"]
    return {
        "name": name,
        "build_directory": str(folder),
        "with_cuda": toolchain is not None,
        "extra_cflags": ["-O3", *macros],
        "extra_cuda_cflags": ["-O3", *macros],
        "extra_include_paths": toolchain.include_dirs if toolchain else [],
        "extra_ldflags": [
            *cuda_toolchain.LINK_FLAGS,
            *(f"-L{path}" for path in (toolchain.library_dirs if toolchain else [])),
        ],
    }


def describe(options: dict) -> str:
    """What is built, for a person."""
    if not options["with_cuda"]:
        return "CPU code (no CUDA compiler)"
    return f"CPU and CUDA code ({os.environ['TORCH_CUDA_ARCH_LIST']})"


def devices(options: dict) -> list[str]:
    """The devices that the built code can run on here."""
    return ["cpu", "cuda"] if options["with_cuda"] and torch.cuda.is_available() else ["cpu"]
