"""The reference and the guide: they build without a warning and leave out no public name."""

import inspect
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import my_ops
import my_ops.distributed

ROOT = Path(__file__).resolve().parent.parent


def public(module) -> dict:
    """The functions and classes of a module's __all__, by their full names."""
    names = {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return {name: value for name, value in names.items() if not inspect.ismodule(value)}


NAMES = public(my_ops) | public(my_ops.nn) | public(my_ops.distributed)
FUNCTIONS = [name for name, value in NAMES.items() if inspect.isfunction(value)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    try:  # without an import: other packages can have a folder of this name
        metadata.version("sphinx")
    except metadata.PackageNotFoundError:
        pytest.skip("needs the extra: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("docs")
    result = subprocess.run(
        [sys.executable, "-m", "sphinx", "-qW", "--keep-going", "-b", "html", "docs", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder


def test_reference_has_every_public_name(built):
    from sphinx.util.inventory import InventoryFile

    with (built / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, page: page)
    documented = {name for kind, names in inventory.items() if kind[:3] == "py:" for name in names}
    assert set(NAMES) | {"my_ops.nn", "my_ops.distributed"} <= documented


def test_every_page_can_be_reached(built):
    index = (built / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f'href="{page.stem}.html"' in index


@pytest.mark.parametrize("name", NAMES)
def test_docstring_describes_every_argument(name):
    signature = inspect.signature(NAMES[name])
    doc = inspect.getdoc(NAMES[name])
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", doc + "\n", flags=re.MULTILINE)
    described = re.findall(r"^    ([\w, ]+):", section[1], flags=re.MULTILINE) if section else []
    described = {word for names in described for word in names.split(", ")}
    if name == "my_ops.add_rmsnorm":  # "see rmsnorm, as for all that follow"
        described |= set(inspect.signature(my_ops.rmsnorm).parameters)
    with_attributes = ("my_ops.FP4Tensor", "my_ops.nn.PatchReport")
    as_torch = ("my_ops.distributed.ColwiseParallel", "my_ops.distributed.RowwiseParallel")
    assert (
        name in (*with_attributes, *as_torch)
        or set(signature.parameters) - {"device", "dtype"} <= described
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_says_what_is_returned_and_raised(name):
    doc = inspect.getdoc(NAMES[name])
    returns = inspect.signature(NAMES[name]).return_annotation not in (None, "None")
    assert not returns or re.search(r"^Returns:$|Returns ``", doc, flags=re.MULTILINE)
    refuses_nothing = ("my_ops.nn.flatten_state_dict", "my_ops.distributed.gather_fp4")
    assert name in refuses_nothing or re.search(r"^Raises:$", doc, flags=re.MULTILINE)


def test_messages_of_troubleshooting_are_those_of_the_sources():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    sources = [
        ROOT / "setup.py",
        *(p for folder in ("my_ops", "tools", "csrc") for p in (ROOT / folder).rglob("*.*")),
    ]
    code = "\n".join(p.read_text() for p in sources if p.suffix in (".py", ".cpp", ".h"))
    code = re.sub(r'"\s*\n?\s*f?"', "", code)  # a literal in several pieces
    terms = re.findall(r"^- `(.+)`\\\n", page, flags=re.MULTILINE)
    of_torch = {
        "no kernel image is available for execution on the device",
        "derivative for my_ops::matmul_forward is not implemented",
        "it must override the setup_context staticmethod",
        "does not have a sharding strategy registered",
        "got mixed torch.Tensor and DTensor",
        "We found a fake tensor in the exported program constant's list",
        "Expected a FP4Tensor tangent but got a plain Tensor",
    }
    assert of_torch < set(terms)
    for term in set(terms) - of_torch:
        for piece in re.split(r"…|^expected |, got ", term):  # _errors.py has what is between
            assert piece.strip() in code, term
