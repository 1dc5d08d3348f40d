"""A pytest plugin for tests that are older than the installed torch, and put functions of their own in place of torch's.

PyTorch 2.6's tests replace `AlgorithmSelectorCache.lookup` by a function of four arguments; torch 2.14 calls it with
``hint_override``, too. A replacement is called without the keywords that torch has added since.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any
from unittest import mock

import pytest


def fitting(original: object, replacement: object) -> object:
    """Return a replacement that is called without the keywords that only the original takes; other arguments are its own."""
    if not (isinstance(original, FunctionType) and isinstance(replacement, FunctionType)):
        return replacement
    wanted = inspect.signature(replacement).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in wanted.values()):
        return replacement
    added = inspect.signature(original).parameters.keys() - wanted.keys()

    @functools.wraps(replacement)
    def called(*arguments: Any, **keywords: Any) -> Any:
        kept = {name: value for name, value in keywords.items() if name not in added}
        return replacement(*arguments, **kept)

    return called if added else replacement


def _with_fitting(patch: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``mock.patch.object`` that lets functions fit what they replace."""

    @functools.wraps(patch)
    def patched(
        target: Any, attribute: str, new: Any = mock.DEFAULT, *arguments: Any, **keywords: Any
    ) -> Any:
        fits = fitting(getattr(target, attribute, None), new)
        return patch(target, attribute, fits, *arguments, **keywords)

    return patched


def pytest_configure(config: pytest.Config) -> None:
    """Let the functions of this run fit."""
    patch = pytest.MonkeyPatch()
    patch.setattr(mock.patch, "object", _with_fitting(mock.patch.object))
    config.add_cleanup(patch.undo)
