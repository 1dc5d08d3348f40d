"""Torch operators: found by their qualified names, and the definition of those that launch a kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_LIBRARY: Any = torch.library
"""Partly typed in torch."""


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


def name_of(op: str) -> str:
    """Return the name of an operator without namespace and overload."""
    return op.partition("::")[2].partition(".")[0]


def _write_nothing(*_: Any, **__: Any) -> None:
    """Be the fake kernel of an operator that writes tensors of its caller."""


def define_kernels(
    schemas: Mapping[str, str],
    functions: Mapping[str, Callable[..., None]],
    fake: Callable[..., None] = _write_nothing,
    key: str = "CUDA",
) -> Any:
    """Define operators of the plugin that write tensors of their caller.

    They return nothing: torch traces no custom operator that returns what it writes, unless that is all it writes
    (``torch.Tag.out``), and some have a workspace and further outputs.

    Args:
        schemas: Arguments, by name with overload.
        functions: What computes each.
        fake: What is called with fake tensors.
        key: The dispatch key of the functions.

    Returns:
        The `torch.library.Library`, which has to be kept.
    """
    library = _LIBRARY.Library("inductor_plugin", "FRAGMENT")
    for name, function in functions.items():
        library.define(f"{name}{schemas[name]} -> ()")
        library.impl(name, function, key)
        _LIBRARY.register_fake(f"inductor_plugin::{name}", fake, lib=library)
    return library
