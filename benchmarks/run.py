"""Runs the benchmarks of all operators, or of those named.

python benchmarks/run.py [square rmsnorm ...] [--quick] [--device cpu] [--out FOLDER]
"""

import importlib

from results import OPERATORS
from suite import arguments


def main(command: list[str] | None = None) -> bool:
    parser = arguments()
    parser.add_argument("operators", nargs="*", default=OPERATORS)
    options = parser.parse_args(command)
    right = [
        importlib.import_module(f"bench_{operator}").suite.run(options)
        for operator in options.operators
    ]
    return all(right)


if __name__ == "__main__":
    raise SystemExit(not main())
