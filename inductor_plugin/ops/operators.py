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


def define_kernels(
    schemas: Mapping[str, str], functions: Mapping[str, Callable[..., torch.Tensor]]
) -> Any:
    """Define operators of the plugin for CUDA tensors, whose fake kernel returns ``out`` unwritten.

    Args:
        schemas: Arguments and result, by name with overload.
        functions: What computes each.

    Returns:
        The `torch.library.Library`, which has to be kept.
    """
    library = _LIBRARY.Library("inductor_plugin", "FRAGMENT")
    for name, function in functions.items():
        library.define(name + schemas[name])
        library.impl(name, function, "CUDA")
        _LIBRARY.register_fake(f"inductor_plugin::{name}", _unwritten, lib=library)
    return library


def _unwritten(*_: Any, out: torch.Tensor, **__: Any) -> torch.Tensor:
    return out
