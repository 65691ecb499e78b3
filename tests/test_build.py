"""How my_ops is built, packed and imported: what fits, what does not, and what the user is told."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import my_ops
from my_ops import _build_info, _load

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import cuda_toolchain  # noqa: E402


def run(*command, cwd=ROOT, **environment):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **{k: str(v) for k, v in environment.items()}},
        capture_output=True,
        text=True,
        check=False,
    )


def python(code, cwd="/", **environment):
    """Runs `code` in a fresh interpreter that finds my_ops in this checkout."""
    return run(sys.executable, "-c", code, cwd=cwd, PYTHONPATH=ROOT, **environment)


# --- import ---------------------------------------------------------------------------------------


def test_import_alone_works_and_does_not_initialise_cuda():
    result = python("import my_ops, torch; print(torch.cuda.is_initialized())")
    assert result.stdout.strip() == "False", result.stderr


def test_compiled_module_alone_can_be_imported():
    assert python("import my_ops._C as c; print(c.square.__name__)").stdout.strip() == "square"


def test_import_survives_fork():
    code = (
        "import my_ops, torch, os\n"
        "pid = os.fork()\n"
        "y = my_ops.square(torch.full((3,), 3.0))\n"
        "assert y.tolist() == [9.0] * 3\n"
        "if pid: assert os.waitpid(pid, 0)[1] == 0; print('both')\n"
    )
    result = python(code)
    assert result.stdout.strip() == "both", result.stderr


def test_reload_of_the_package_does_not_register_twice():
    code = "import my_ops, importlib; importlib.reload(my_ops); print('ok')"
    assert python(code).stdout.strip() == "ok"


def test_build_information_is_of_the_running_torch():
    assert _build_info.torch == torch.__version__
    _load.check_build(_build_info.torch, _build_info.cuda)


def test_another_torch_is_named_with_the_command():
    with pytest.raises(ImportError) as error:
        _load.check_build("2.5.1+cu121", "12.1")
    assert "built for torch 2.5.1+cu121" in str(error.value)
    assert f"torch {torch.__version__} is running" in str(error.value)
    assert "pip install --no-build-isolation" in str(error.value)


def test_another_cuda_is_named_with_the_command():
    with pytest.raises(ImportError, match=r"built for CUDA 99\.1 and torch .* runs with CUDA"):
        _load.check_build(torch.__version__, "99.1")


def test_missing_build_is_named(tmp_path):
    package = tmp_path / "my_ops"
    package.mkdir()
    for name in ("__init__.py", "_load.py"):
        (package / name).write_text((ROOT / "my_ops" / name).read_text())
    result = run(sys.executable, "-c", "import my_ops", cwd=tmp_path, PYTHONPATH=tmp_path)
    assert f"ImportError: my_ops._C is not built in {tmp_path}; run there: make" in result.stderr
    (tmp_path / "my_ops-1.2.3.dist-info").mkdir()
    (tmp_path / "my_ops-1.2.3.dist-info" / "METADATA").write_text("Name: my_ops\nVersion: 1.2.3")
    result = run(sys.executable, "-c", "import my_ops", cwd=tmp_path, PYTHONPATH=tmp_path)
    assert f"found the source folder {tmp_path} before the installed my_ops 1.2.3" in result.stderr


def test_stub_lists_the_compiled_functions():
    stub = (ROOT / "my_ops" / "_C.pyi").read_text()
    declared = set(re.findall(r"^def (\w+)\(|^(\w+):", stub, flags=re.MULTILINE))
    declared = {function or name for function, name in declared}
    compiled = {name for name in dir(my_ops._C) if not name.startswith("__")}
    assert declared == compiled


# --- the compiler ---------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(
    cuda_toolchain.find() is None, reason="no CUDA compiler for this torch"
)


@needs_compiler
def test_architectures_are_chosen_without_a_gpu():
    code = (
        "import cuda_toolchain as c, os; c.find().configure_environment();"
        "print(os.environ['TORCH_CUDA_ARCH_LIST'])"
    )
    tools = ROOT / "tools"
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": tools}
    chosen = run(sys.executable, "-c", code, TORCH_CUDA_ARCH_LIST="", **hidden)
    assert chosen.stdout.strip() == cuda_toolchain.DEFAULT_ARCHITECTURES, chosen.stderr
    kept = run(sys.executable, "-c", code, TORCH_CUDA_ARCH_LIST="9.0", **hidden)
    assert kept.stdout.strip() == "9.0"
    old = run(sys.executable, "-c", code, TORCH_CUDA_ARCH_LIST="7.5;9.0", **hidden)
    assert old.returncode == 1
    assert old.stderr.startswith(
        "my_ops needs compute capability 8.0 or newer, and was to be built for 7.5;9.0: "
    )


def test_ptx_is_for_architectures_to_come():
    """PTX with an "a" runs on one architecture alone; from 9.0 on the hosts expect clusters."""
    with_ptx = re.findall(r"([0-9.]+a?)\+PTX", cuda_toolchain.DEFAULT_ARCHITECTURES)
    assert with_ptx
    assert not any(name.endswith("a") or float(name) < 9 for name in with_ptx)


def test_own_flags_are_for_the_default_architectures():
    made = {flag.rpartition("code=")[2] for flag in cuda_toolchain.DEFAULT_NVCC_FLAGS}
    wanted = set()
    for name in cuda_toolchain.DEFAULT_ARCHITECTURES.split(";"):
        number = name.removesuffix("+PTX").replace(".", "")
        wanted |= {f"sm_{number}"} | ({f"compute_{number}"} if name.endswith("+PTX") else set())
    assert made == wanted


def test_no_code_is_for_12_0_alone():
    """Its machine code is made from the PTX of 10.0: DEFAULT_NVCC_FLAGS."""
    for path in [*(ROOT / "csrc").rglob("*.cu*"), *(ROOT / "csrc").rglob("*.h")]:
        asked = re.findall(r"__CUDA_ARCH(?:_FEAT_SM|__ *[<>=!]+ *)(\d+)", path.read_text())
        assert set(asked) <= {"800", "900", "90"}, path.name


@needs_compiler
def test_too_old_a_compiler_is_named(monkeypatch):
    version = cuda_toolchain.find().version
    monkeypatch.setattr(cuda_toolchain, "OLDEST_CUDA", (99, 1))
    assert cuda_toolchain.find() is None
    assert re.fullmatch(
        rf"my_ops needs nvcc 99\.1 or newer, and \S+ has {version}\.", cuda_toolchain.why_none()
    )
    code = (
        "import sys, runpy; sys.path.insert(0, 'tools'); sys.argv = ['setup.py', '--name'];"
        "import cuda_toolchain; cuda_toolchain.OLDEST_CUDA = (99, 1);"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    assert "my_ops needs nvcc 99.1" in run(sys.executable, "-c", code, MY_OPS_CUDA="").stderr
    assert run(sys.executable, "-c", code, MY_OPS_CUDA=0).stdout.strip() == "my_ops"


@needs_compiler
def test_the_link_to_cudart_is_replaced_in_one_step(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_toolchain, "CUDART_FOLDER", tmp_path / "cudart")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    toolchain = cuda_toolchain.find()
    assert not list(tmp_path.iterdir()), "to ask must not write"
    if not toolchain.library_dirs:
        pytest.skip("the toolkit has its own libcudart.so")
    for _ in range(2):
        toolchain.configure_environment()
        (link,) = (tmp_path / "cudart").iterdir()
        assert link.name == "libcudart.so"
        assert link.resolve().name.startswith("libcudart.so.")
        link.unlink()
        link.symlink_to("/nowhere")


@needs_compiler
def test_compiler_is_found_behind_a_wrapper_script(tmp_path, monkeypatch):
    real = cuda_toolchain.find().cuda_home
    wrapper = tmp_path / "nvcc"
    wrapper.write_text(f'#!/bin/sh\nexec {real}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    assert cuda_toolchain._home_of(str(wrapper)).resolve() == real.resolve()


def test_no_compiler_is_found_for_a_cpu_build_of_torch(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert cuda_toolchain.find() is None


def test_cuda_that_is_insisted_on_and_missing_is_named(tmp_path):
    # A torch of CUDA 99: no compiler fits it.
    code = (
        "import torch, sys, runpy; torch.version.cuda = '99.0'; sys.argv = ['setup.py', '--name'];"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    result = run(sys.executable, "-c", code, MY_OPS_CUDA=1)
    assert result.returncode != 0
    assert "There is no nvcc for torch" in result.stderr
    assert "tools/cuda_toolchain.py --install" in result.stderr


def test_without_torch_the_build_names_the_command(tmp_path):
    # -I and -S: an interpreter that sees no site-packages, as in an isolated build without torch.
    code = (
        "import sys, types, sysconfig; m = types.ModuleType('setuptools'); m.setup = None;"
        "m.__version__ = '80';"
        "sys.modules['setuptools'] = m; sysconfig.get_paths = lambda: {'purelib': '/nowhere'};"
        "import runpy; runpy.run_path('setup.py', run_name='__main__')"
    )
    result = run(sys.executable, "-I", "-S", "-c", code)
    assert result.returncode != 0
    assert "pip install torch==" in result.stderr


def test_rebuild_is_incremental_and_sees_headers():
    """A touched header makes ninja rebuild the sources that include it, and no others."""
    # The ninja that built: another version does not read its log and finds everything stale.
    ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    folders = list((ROOT / "build").glob(f"temp-*-torch{torch.__version__}"))
    if not folders or ninja is None:
        pytest.skip("my_ops was not built in this folder")

    def stale(*touched):
        before = [(path, path.stat()) for path in touched]
        for path in touched:
            path.touch()
        plan = run(ninja, "-n", "-v", cwd=folders[0]).stdout
        for path, stat in before:
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return {Path(source).stem for source in re.findall(r" -c (\S+\.(?:cpp|cu))", plan)}

    assert stale() == set()
    assert stale(ROOT / "csrc" / "square" / "square_cpu.cpp") == {"square_cpu"}
    header = stale(ROOT / "csrc" / "square" / "square.h")
    assert {"module", "square", "square_cpu"} <= header
    assert header <= {"module", "square", "square_cpu", "square_cuda"}


# --- packages -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(folder)!r}))"
    result = run(sys.executable, "-c", code, MY_OPS_CUDA=0)
    assert result.returncode == 0, result.stderr
    return next(folder.glob("*.tar.gz"))


def test_sdist_is_complete(sdist):
    with tarfile.open(sdist) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    tracked = run("git", "ls-files").stdout.split()
    if not tracked:
        pytest.skip("not a git checkout: nothing to compare the archive with")
    ignored = {".gitignore", ".ci/run"}
    assert set(tracked) - ignored <= packed
    assert not [name for name in packed if name.endswith(".so") or "_build_info" in name]


def test_sdist_builds_a_wheel_without_cuda_that_says_so(sdist, tmp_path):
    """The archive alone is enough to build, install and run; CUDA calls of a CPU build say why."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(tmp_path.glob("my_ops-*"))
    result = run(
        *(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"),
        *("-w", tmp_path, source),
        MY_OPS_CUDA=0,
    )
    output = result.stdout + result.stderr  # thousands of lines, the compilers' errors amid them
    errors = [line for line in output.splitlines() if "error:" in line]
    assert result.returncode == 0, "\n".join([*errors, output[-3000:]])
    site = tmp_path / "site"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
        names = wheel.namelist()
    for name in ("py.typed", "_C.pyi", "_build_info.py", "ops/square.py"):
        assert f"my_ops/{name}" in names
    code = (
        "import my_ops, torch; print(my_ops.__file__, my_ops._build_info.cuda)\n"
        "assert my_ops.square(torch.full((2,), 3.0)).tolist() == [9.0, 9.0]\n"
        "if torch.cuda.is_available():\n"
        "    try: my_ops.square(torch.ones(2, device='cuda'))\n"
        "    except RuntimeError as error:\n"
        "        start = 'my_ops.square: x: expected a CPU tensor (my_ops was built without CUDA'\n"
        "        assert str(error).startswith(start)\n"
        "    else: raise AssertionError\n"
    )
    result = run(sys.executable, "-c", code, cwd="/", PYTHONPATH=site)
    assert result.returncode == 0, result.stderr
    assert str(site) in result.stdout
    assert result.stdout.strip().endswith("None")
