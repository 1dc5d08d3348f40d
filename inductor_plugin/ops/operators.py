"""Torch operators by their qualified names."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch


def resolve(op: str, imports: Sequence[str] = ()) -> Any:
    """Return the overload of an operator.

    Args:
        op: ``namespace::name.overload``; without ``.overload`` the default one.
        imports: Modules to import first.

    Raises:
        AttributeError: No imported module defines it.
    """
    for module in imports:
        importlib.import_module(module)
    namespace, _, qualified = op.partition("::")
    name, _, overload = qualified.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
