"""The form of every message: operator, argument, what was expected and what came."""

from typing import NoReturn


def expected_message(op: str, argument: str, expected: str, got) -> str:
    return f"my_ops.{op}: {argument}: expected {expected}, got {got}"


def raise_expected(
    op: str, argument: str, expected: str, got, error: type[Exception] = RuntimeError
) -> NoReturn:
    raise error(expected_message(op, argument, expected, got))
