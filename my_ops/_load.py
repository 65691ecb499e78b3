"""Loads my_ops._C, which registers the operators, or says why it cannot be loaded and what to do.

A compiled extension fits one torch minor version and one CUDA major version only. Comparing them
first gives a sentence instead of the loader's undefined symbol.
"""

from importlib import metadata
from pathlib import Path

import torch

REBUILD = "pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps ."


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_build(built_torch: str, built_cuda: str | None) -> None:
    """Raises ImportError when _C was built for another torch than the running one."""
    if _minor(built_torch) != _minor(torch.__version__):
        raise ImportError(
            f"my_ops was built for torch {built_torch} and torch {torch.__version__} is running; "
            f"rebuild it in its source folder with: {REBUILD}"
        )
    running_cuda = torch.version.cuda
    if built_cuda and (running_cuda or "none").split(".")[0] != built_cuda.split(".")[0]:
        raise ImportError(
            f"my_ops was built for CUDA {built_cuda} and torch {torch.__version__} runs with CUDA "
            f"{running_cuda}; rebuild it in its source folder with: {REBUILD}"
        )


def explain_missing_build() -> str:
    """Why this folder has no compiled module, and what to do."""
    folder = Path(__file__).parent.parent
    try:
        installed = metadata.version("my_ops")
    except metadata.PackageNotFoundError:
        return (
            f"my_ops._C is not built in {folder}; run there: make build, or "
            "pip install --no-build-isolation -e ."
        )
    return (
        f"Python found the source folder {folder} before the installed my_ops {installed}: run it "
        "from another folder, or build here too: pip install --no-build-isolation -e ."
    )


try:
    from my_ops import _build_info
except ImportError:
    raise ImportError(explain_missing_build()) from None

check_build(_build_info.torch, _build_info.cuda)

from my_ops import _C  # noqa: E402, F401
