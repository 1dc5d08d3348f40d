"""What `fmha` refuses of its arguments by their kind, before torch's dispatcher says it without their names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LIMIT = 1 << 63


def check_number(name: str, value: Any, wanted: str) -> None:
    """Refuse what is no number; its value is the operator's to check.

    Raises:
        TypeError: It is something else, which torch's dispatcher would refuse without its name, or a
            tensor, whose value a compiled graph does not have.
    """
    if isinstance(value, Tensor):
        raise TypeError(f"fmha: {name} is a tensor; it is {wanted}: call .item() on it")
    if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not hasattr(
        value, "__float__"
    ):
        raise TypeError(f"fmha: {name} is {_quoted(value)}; it is {wanted}")


def check_length(name: str, value: Any) -> None:
    """Refuse what is no length; its value is the operator's to check.

    Raises:
        TypeError: It is no integer, or in a tensor.
    """
    if isinstance(value, Tensor):
        raise TypeError(f"fmha: {name} is a tensor; it is an integer: call .item() on it")
    if value is not None and not _is_integer(value):
        raise TypeError(f"fmha: {name} is {_quoted(value)}; it is an integer, or None")


def check_tensor(name: str, value: Any) -> None:
    """Refuse what is no tensor with a TypeError."""
    _check_kind(name, value, Tensor, "a tensor")


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false with a TypeError."""
    _check_kind(name, value, (bool, torch.SymBool), "True or False")


def _check_kind(name: str, value: Any, kinds: Any, wanted: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"fmha: {name} is {_quoted(value)}; it is {wanted}")


def check_window(window: Any) -> None:
    """Refuse what is no pair of 64-bit integers; their values are the operator's to check.

    Raises:
        TypeError: It is something else.
        ValueError: An integer has more bits.
    """
    pair = type(window) in (tuple, list) and len(window) == 2
    if not pair or not all(_is_integer(side) for side in window):
        raise TypeError(
            f"fmha: window is {written(window)}; it is two integers (left, right), the keys a query sees "
            "before and behind the diagonal, -1 for all of them"
        )
    for side in window:
        if type(side) is int and not -_LIMIT <= side < _LIMIT:
            raise ValueError(
                f"fmha: window is {written(window)}; it has more than 64 bits, give -1 for all keys"
            )


def written(value: Any) -> str:
    """Return an argument as a message shows it, while it is traced, too.

    torch.compile (2.14) cannot take the ``repr`` of a tuple that holds symbols, and their names say
    nothing to who gave the numbers.
    """
    if type(value) in (tuple, list):
        inside = ", ".join([written(item) for item in value])
        if type(value) is list:
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, Tensor):
        return "a tensor"
    if _is_integer(value):
        return f"{int(value)}"
    if isinstance(value, (float, torch.SymFloat)):
        return f"{float(value)}"
    return f"{value}"


def _quoted(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else written(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
