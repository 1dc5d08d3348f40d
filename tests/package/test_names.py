"""Rule 10 of CONTRIBUTING.md, as far as a program can see it: no binding is called by a word that names nothing."""

from __future__ import annotations

import ast
import re
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


def may_bind(text: str, words: set[str]) -> bool:
    """Return False for a module that binds none of the words: to parse all of them takes 5 s.

    A name that is bound is followed by what assigns it or ends it, by ``in``, or by what ends its line early.
    """
    names = "|".join(words)
    ends = r"[-+*/|&@%^<>]*=|[:,)\](\[#\\]|in\b"
    return re.search(rf"(?<![^\W_])(?:{names})_*\s*(?:{ends})", text, re.IGNORECASE) is not None


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
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    assert [
        f"{file.relative_to(repository)}:{line} {name}"
        for file, text in texts.items()
        if may_bind(text, words)
        for name, line in bindings(text).items()
        if name in words
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "made = 1",
        "made: int",
        "made += 1",
        "made //= 2",
        "made \\\n    = 1",
        "a, made = b",
        "a, *made = b",
        "[made] = b",
        "(\n    a,\n    made  # why\n) = b",
        "print(made := 1)",
        "for made in x: ...",
        "for made, a in x: ...",
        "[a for a, made in x]",
        "with a as made: ...",
        "with a as made, b: ...",
        "lambda made: 1",
        "def f(made): ...",
        "def f(made=1): ...",
        "def f(*made, a): ...",
        "def _made(): ...",
        "class Made: ...",
        "class MADE_(int): ...",
    ],
)
def test_each_kind_of_binding_is_seen(text: str) -> None:
    assert may_bind(text, {"found", "made"})
    assert "made" in bindings(text)
