"""The form of every message: operator, argument, what was expected and what came."""

import numbers
import sys
from typing import NoReturn

from torch import Tensor

# What stands in an operator's schema, in Python and in words.
_TYPES = {
    "Tensor": (Tensor, "a tensor"),
    "str": (str, "a string"),
    "float": (numbers.Real, "a number"),
    "int": (numbers.Integral, "an integer"),
    "bool": (bool, "a bool"),
}


def expected_message(op: str, argument: str, expected: str, got) -> str:
    return f"my_ops.{op}: {argument}: expected {expected}, got {got}"


def raise_expected(
    op: str, argument: str, expected: str, got, error: type[Exception] = RuntimeError
) -> NoReturn:
    raise error(expected_message(op, argument, expected, got))


def check_bool(op: str, argument: str, value, error: type[Exception] = RuntimeError) -> None:
    kind = type(value)
    if kind is not bool:
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."  # numpy has a bool
        raise_expected(op, argument, "a bool", module + kind.__name__, error)


def raise_wrong_type(op: str, schema, args) -> NoReturn:
    """Of a call that pybind11 refused. TypeError, as torch has it; the FP4 operators have
    RuntimeError for whatever they refuse."""
    error = RuntimeError if op.startswith("fp4_") else TypeError
    for argument, value in zip(schema.arguments, args, strict=False):
        optional = str(argument.type).startswith("Optional")
        kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
        python_type, words = _TYPES.get(kind, (object, ""))
        if not isinstance(value, python_type) and not (optional and value is None):
            expected = words + " or None" * optional
            name = argument.name.lower()  # matmul's A is the function's a
            raise error(expected_message(op, name, expected, type(value).__name__)) from None
        if kind == "float" and isinstance(value, int) and abs(value) > sys.float_info.max:
            expected = "a number that a double can hold"
            raise error(expected_message(op, argument.name, expected, "an int")) from None
    got = ", ".join(type(value).__name__ for value in args)
    raise error(f"my_ops.{op}: expected {schema}, got ({got})") from None
