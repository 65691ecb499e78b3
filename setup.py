"""Builds my_ops._C against the torch that is installed. Metadata is in pyproject.toml.

MY_OPS_CUDA=1 insists on CUDA, =0 leaves it out; unset, it is built where torch has CUDA and a
compiler is found. TORCH_CUDA_ARCH_LIST and MAX_JOBS mean what they mean to torch.
"""

import os
import platform
import sys
import sysconfig
from pathlib import Path

import setuptools
from setuptools import setup

ROOT = Path(__file__).resolve().parent
if int(setuptools.__version__.split(".")[0]) < 77:
    sys.exit(
        f"my_ops needs setuptools 77 or newer to build, and this is {setuptools.__version__}.\n"
        "Upgrade it with:  pip install 'setuptools>=77'"
    )
sys.path.insert(0, str(ROOT / "tools"))

try:
    import torch
except ModuleNotFoundError:
    # pip's isolated build environment hides the installed torch, the one to build against.
    sys.path.append(sysconfig.get_paths()["purelib"])
    try:
        import torch
    except ModuleNotFoundError:
        sys.exit(
            "my_ops is built against the torch that is already installed, and there is none.\n"
            "Install it first, for example:  pip install torch==2.14.1\n"
            "then:                           pip install ."
        )

import cuda_toolchain  # noqa: E402

wanted = os.environ.get("MY_OPS_CUDA", "")
toolchain = None if wanted == "0" else cuda_toolchain.find()
if toolchain is not None:
    toolchain.configure_environment()
elif wanted == "1" or (wanted != "0" and cuda_toolchain.only_old_compilers()):
    sys.exit(
        f"{cuda_toolchain.why_none()}\n"
        "Install one (python tools/cuda_toolchain.py --install), set CUDA_HOME, or build for the "
        "CPU alone with MY_OPS_CUDA=0."
    )

from torch.utils.cpp_extension import (  # noqa: E402
    BuildExtension,
    CppExtension,
    CUDAExtension,
    include_paths,
)

# Warnings are errors where the project is developed (.ci/run sets this), not at a user's.
WERROR = os.environ.get("MY_OPS_WERROR") == "1"
# As system headers torch's own do not warn.
TORCH_HEADERS = [flag for path in include_paths() for flag in ("-isystem", path)]
# Python's own flags ask for all debug information, a fifth of the compile time; lines are enough.
CXX_FLAGS = ["-O3", "-g1", "-DNDEBUG", "-ffp-contract=off", "-Wall", "-Wextra", *TORCH_HEADERS]
# torch's headers then declare the operators that they use, not all: 1 to 3 s less a file.
CXX_FLAGS += ["-DAT_PER_OPERATOR_HEADERS"]
NVCC_FLAGS = ["-O3", "-DNDEBUG", "-lineinfo", *TORCH_HEADERS]
NVCC_FLAGS += ["-Xcompiler=-Wall,-Wextra,-ffp-contract=off"]


def extension():
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp"))
    options = {
        "include_dirs": [str(ROOT / "csrc")],
        "depends": [str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.*h")],
        "extra_compile_args": {"cxx": CXX_FLAGS + ["-Werror"] * WERROR},
        "extra_link_args": cuda_toolchain.LINK_FLAGS,
    }
    if toolchain is None:
        return CppExtension("my_ops._C", sources, **options)
    options["include_dirs"] += toolchain.include_dirs
    options["library_dirs"] = toolchain.library_dirs
    options["define_macros"] = [("MY_OPS_WITH_CUDA", None)]
    nvcc_flags = NVCC_FLAGS + toolchain.nvcc_flags()
    options["extra_compile_args"]["nvcc"] = nvcc_flags + ["-Werror=all-warnings"] * WERROR
    sources += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cu"))
    return CUDAExtension("my_ops._C", sources, **options)


class Build(BuildExtension):
    """Keeps object files between editable builds, and records what the build was made for."""

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode or self.inplace:
            # An editable install builds in a new temporary folder each time: nothing to reuse.
            tag = f"{platform.machine()}-{sys.implementation.cache_tag}"
            self.build_temp = str(ROOT / "build" / f"temp-{tag}-torch{torch.__version__}")

    def run(self):
        cuda = toolchain is not None
        archs = os.environ["TORCH_CUDA_ARCH_LIST"] if cuda else None
        print(
            f"my_ops: building for torch {torch.__version__}, "
            + (f"CUDA {toolchain.version} ({archs})" if cuda else "CPU only"),
            flush=True,
        )
        super().run()
        folder = ROOT if self.editable_mode or self.inplace else Path(self.build_lib)
        (folder / "my_ops" / "_build_info.py").write_text(
            '"""What my_ops._C was built for. Written by setup.py."""\n\n'
            f'torch = "{torch.__version__}"\n'
            f"cuda = {repr(torch.version.cuda) if cuda else None}\n"
            f"architectures = {archs!r}\n".replace("'", '"')
        )


setup(ext_modules=[extension()], cmdclass={"build_ext": Build})
