"""Prints the packages of pyproject.toml's extras, for pip: python tools/extras.py test dev

`pip install .[test]` would build my_ops as well; the Makefile wants the tools before the build.
"""

import re
import sys
from pathlib import Path

text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
for extra in sys.argv[1:]:
    packages = re.search(rf"^{extra} = \[(.*)\]$", section, re.MULTILINE)
    print("\n".join(re.findall(r'"([^"]+)"', packages.group(1))))
