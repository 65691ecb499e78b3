"""README, CONTRIBUTING and the guide: their Python runs; commands, files and licences are right."""

import re
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

import my_ops

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language, with the line each begins at."""
    text = page.read_text()
    fences = re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, fence.start(1)), fence[1]) for fence in fences]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.stem)
def test_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """The blocks of a page one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # a real one: Dynamo looks globals up in sys.modules
    monkeypatch.setitem(sys.modules, "page", module)
    for line, code in blocks(page, "python"):
        exec(compile("\n" * line + code, str(page), "exec"), vars(module))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_and_files_of_a_page_exist(page):
    text = page.read_text()
    code = "\n".join([*re.findall(r"`([^`\n]+)`", text), *(c for _, c in blocks(page, ""))])
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(" ".join(re.findall(r"\bmake((?: [a-z]+)+)", code)).split()) <= targets
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir())
    paths = set(re.findall(rf"(?<![\w/.-])(?:{folders})/[\w./-]*(?![\w./<-])", code))
    here = page.parent.relative_to(ROOT)  # where links begin
    paths |= {str(here / link) for link in re.findall(r"\]\((?!http|#)([^)#]+)", text)}
    made_up = re.compile(r"cube|/operator|^(?:build|out|dist)/")
    missing = [p for p in paths if not made_up.search(p) and not list(ROOT.glob(p.rstrip("/")))]
    assert not missing


def test_changelog_has_this_version():
    assert f"\n## {my_ops.__version__} - " in (ROOT / "CHANGELOG.md").read_text()


# docs/licenses.md beside pyproject.toml and what is installed.
ROWS = re.findall(
    r"^\| ([\w-]+) \| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/licenses.md").read_text(), re.MULTILINE
)
LICENCES = {package: licence for package, needed, licence in ROWS if package != "package"}
EXTRAS = ("test", "examples", "docs", "bench", "dev")


def test_licences_are_listed_for_every_requirement():
    for group in ("build", *EXTRAS):
        command = [sys.executable, ROOT / "tools" / "extras.py", group]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for requirement in listed.split():
            package = re.match(r"[\w-]+", requirement)[0]
            (needed,) = [needed for name, needed, _ in ROWS if name == package]
            assert group in needed
    assert re.findall(
        r'^dependencies = \["(\w+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    ) == ["torch"]


def stated_licence(package: str) -> str:
    """What the metadata of an installed package says; nothing, of one that is not installed."""
    try:
        about = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return ""
    fields = [about["License-Expression"], *(about["License"] or "").splitlines()[:1]]
    fields += [c for c in about.get_all("Classifier") or [] if c.startswith("License")]
    return " ".join(filter(None, fields))


@pytest.mark.parametrize("package", [name for name in LICENCES if stated_licence(name)])
def test_licence_is_that_of_the_installed_package(package):
    said = stated_licence(package)
    # Free text such as "Apache Software License": the family is what it tells.
    families = set(re.findall(r"Apache|BSD|MIT|MPL|Mozilla|Python|PSF|Zlib|BSL|0BSD|CC0", said))
    names = {"Mozilla": "MPL", "Python": "PSF"}
    assert families
    for family in families:
        assert names.get(family, family) in LICENCES[package]
