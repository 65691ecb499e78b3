"""README, CONTRIBUTING and the guide: their Python runs, their commands and files exist."""

import re
from pathlib import Path

import pytest

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
    names = {"__name__": "__main__"}
    for line, code in blocks(page, "python"):
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_and_files_of_a_page_exist(page):
    text = page.read_text()
    code = "\n".join([*re.findall(r"`([^`\n]+)`", text), *(c for _, c in blocks(page, ""))])
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(" ".join(re.findall(r"\bmake((?: [a-z]+)+)", code)).split()) <= targets
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir())
    paths = set(re.findall(rf"(?<![\w/.-])(?:{folders})/[\w./-]*(?![\w./<-])", code))
    paths |= set(re.findall(r"\]\((?!http|#)([^)#]+)", text))
    made_up = re.compile(r"cube|/operator|^(?:build|out|dist)/")
    missing = [p for p in paths if not made_up.search(p) and not list(ROOT.glob(p.rstrip("/")))]
    assert not missing
