"""Rule 10 of CONTRIBUTING.md, as far as a program can see it: no binding is called by a word that names nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EVERYWHERE = {"found", "made", "told"}
PRODUCT = EVERYWHERE | {"home", "note", "one", "standing"}


def bindings(text: str) -> dict[str, int]:
    """Return the names that a module binds, with the line of one of their bindings."""
    names: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names[name] = node.lineno
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names[name.strip("_").lower()] = node.lineno
            case _:
                pass
    return names


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("inductor_plugin", PRODUCT),
        ("templates", PRODUCT),
        ("cache", PRODUCT),
        ("benchmarks", PRODUCT),
        ("tests", EVERYWHERE),
    ],
)
def test_bindings_are_named_by_their_nouns(root: str, words: set[str], repository: Path) -> None:
    files = sorted((repository / root).rglob("*.py"))
    assert files
    assert [
        f"{file.relative_to(repository)}:{line} {name}"
        for file in files
        for name, line in bindings(file.read_text(encoding="utf-8")).items()
        if name in words
    ] == []


@pytest.mark.parametrize(
    "text",
    ["made = 1", "def f(made): ...", "def _made(): ...", "class Made: ...", "for made in x: ..."],
)
def test_each_kind_of_binding_is_seen(text: str) -> None:
    assert "made" in bindings(text)
