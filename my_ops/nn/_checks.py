"""Checks of the arguments that several functions and modules of my_ops.nn take."""

from my_ops._errors import raise_expected


def check_bool(op: str, argument: str, value, error: type[Exception]) -> None:
    if not isinstance(value, bool):
        raise_expected(op, argument, "a bool", repr(value), error)
