"""Runs the benchmarks of all operators, or of those named.

    python benchmarks/run.py [square rmsnorm ...] [--quick] [--device cpu] [--out FOLDER]

Where the files are a copy without git, MY_OPS_COMMIT names the commit in the results.
"""

import importlib

from results import OPERATORS
from suite import arguments


def main(command: list[str] | None = None) -> bool:
    parser = arguments()
    parser.add_argument("operators", nargs="*", default=OPERATORS)
    options = parser.parse_args(command)
    if unknown := set(options.operators) - set(OPERATORS):
        parser.error(f"expected operators of {', '.join(OPERATORS)}, got {', '.join(unknown)}")
    right = [
        importlib.import_module(f"bench_{operator}").suite.run(options)
        for operator in options.operators
    ]
    return all(right)


if __name__ == "__main__":
    raise SystemExit(not main())
