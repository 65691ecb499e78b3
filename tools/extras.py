"""Prints packages of pyproject.toml for pip: python tools/extras.py build test dev

`build` are those that a build needs, the others are extras. `pip install .[test]` would build
my_ops as well; the Makefile wants the tools before the build.
"""

import re
import sys
from pathlib import Path

text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
# No tomllib: it came with Python 3.11, and my_ops supports 3.10.
build = re.search(r"^requires = \[(.*)\]$", text, re.MULTILINE)[1]
section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
extras = {"build": build, **dict(re.findall(r"^(\w+) = \[(.*)\]$", section, re.MULTILINE))}
for name in sys.argv[1:]:
    if name not in extras:
        sys.exit(f"extras.py: expected one of {', '.join(extras)}, got {name}")
    print("\n".join(re.findall(r'"([^"]+)"', extras[name])))
