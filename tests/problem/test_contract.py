"""A requirement that a contract can state is one that operands are judged by."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from inductor_plugin.problem import layout
from inductor_plugin.problem.contract import Contract


def unread(names: Iterable[str], text: str) -> set[str]:
    """Return the fields that a module never reads."""
    tree = ast.parse(text)
    return set(names) - {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_every_requirement_is_evaluated() -> None:
    names = [field.name for field in fields(Contract)]
    assert unread(names, Path(layout.__file__).read_text(encoding="utf-8")) == set()


def test_a_requirement_that_nothing_evaluates_is_seen() -> None:
    @dataclass(frozen=True)
    class Stricter(Contract):
        page_aligned: bool = False

    names = [field.name for field in fields(Stricter)]
    assert unread(names, Path(layout.__file__).read_text(encoding="utf-8")) == {"page_aligned"}
