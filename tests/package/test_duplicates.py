"""No six lines of code are in the package twice: what two places need has one name.

Imports, signatures, docstrings, comments and the bodies of protocols do not count, and neither do the texts of kernels
(Jinja, `templates/*/source`): they are part of kernel keys.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

LINES = 6
EMPTY = ("", "...")
FOLDERS = ("inductor_plugin", "cache", "templates")


def ignored(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of imports, signatures and docstrings, from 1."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from range(node.lineno, node.body[0].lineno)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def code(text: str) -> list[tuple[int, str]]:
    """Return the lines of code with their numbers."""
    dropped = set(ignored(ast.parse(text)))
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [
        (n, line) for n, line in lines if n not in dropped and line not in EMPTY and line[0] != "#"
    ]


def repeated(texts: dict[str, str]) -> list[list[str]]:
    """Return where the same lines are, each place as ``file:line``."""
    places: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text in texts.items():
        lines = code(text)
        for start in range(len(lines) - LINES + 1):
            block = tuple(line for _, line in lines[start : start + LINES])
            places[block].append(f"{name}:{lines[start][0]}")
    return [each for each in places.values() if len(each) > 1]


def texts_of(repository: Path) -> dict[str, str]:
    """Return the modules of the package by path."""
    return {
        str(path.relative_to(repository)): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in sorted((repository / folder).rglob("*.py"))
        if path.resolve() == path  # inductor_plugin/cache is a link
    }


def shared_names(texts: dict[str, str]) -> dict[str, list[str]]:
    """Return names that several classes have, private or not, with their files."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                files[node.name.lstrip("_")].append(name)
    return {name: where for name, where in files.items() if len(where) > 1}


def test_no_six_lines_are_there_twice(repository: Path) -> None:
    texts = texts_of(repository)
    assert len(texts) > 300
    assert repeated(texts) == []


def test_each_class_has_a_name_of_its_own(repository: Path) -> None:
    assert shared_names(texts_of(repository)) == {}


def test_a_class_name_that_is_there_twice_is_found() -> None:
    texts = {"a.py": "class Call: ...", "b.py": "def f():\n    class _Call: ..."}
    assert shared_names(texts) == {"Call": ["a.py", "b.py"]}


def test_lines_that_are_repeated_are_seen() -> None:
    body = "\n".join(f"    x{i} = f({i})" for i in range(LINES))
    first, second = (
        f'def a(q,\n  k):\n    """Text."""\n{body}\n',
        f"def b(z):\n{body}\n    return x0\n",
    )
    assert repeated({"one": first, "two": second}) == [["one:4", "two:2"]]
    assert repeated({"one": first, "two": second.replace("x3", "y3")}) == []
