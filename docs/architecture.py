"""The generated parts of ARCHITECTURE.md: the folders with one sentence each, and the layers.

The sentences are the docstrings of the packages; the layers are those that import-linter checks.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDERS_BEGIN, FOLDERS_END = "<!-- folders: begin (make docs) -->\n", "<!-- folders: end -->\n"
LAYERS_BEGIN, LAYERS_END = "<!-- layers: begin (make docs) -->\n", "<!-- layers: end -->\n"
_ROOTS = ("inductor_plugin", "templates", "cache")
_INDENT = 4
_WIDTH = 26


def renewed(text: str, repository: Path) -> str:
    """Return ARCHITECTURE.md with its generated parts renewed.

    Raises:
        ValueError: It lacks the markers around them.
    """
    for begin, end, part in (
        (FOLDERS_BEGIN, FOLDERS_END, folders(repository)),
        (LAYERS_BEGIN, LAYERS_END, layers(repository)),
    ):
        before, first, rest = text.partition(begin)
        _, last, after = rest.partition(end)
        if not (first and last):
            raise ValueError(f"the text lacks the lines {begin!r} and {end!r}; put them back")
        text = f"{before}{first}\n{part}\n{last}{after}"
    return text


def folders(repository: Path) -> str:
    """Return one line for each package: its path as a tree, and the first sentence of its docstring."""
    lines: list[str] = []
    for root in _ROOTS:
        for package in sorted((repository / root).rglob("__init__.py")):
            folder = package.parent.relative_to(repository)
            if folder.parts[:2] in {(_ROOTS[0], name) for name in _ROOTS[1:]}:
                continue  # the links to the folders at the top
            name = " " * _INDENT * (len(folder.parts) - 1) + f"{folder.name}/"
            lines.append(f"{name:<{_WIDTH}}  {_sentence(package)}".rstrip())
    return "```\n" + "\n".join(lines) + "\n```\n"


def layers(repository: Path) -> str:
    """Return the layers of the package, the highest first, as import-linter checks them."""
    return "```\n" + "\n".join(f"  {row}" for row in layer_rows(repository)) + "\n```\n"


def layer_rows(repository: Path, name: str = "arrows go down only") -> list[str]:
    """Return the rows of a contract of import-linter, the highest first.

    Raises:
        ValueError: pyproject.toml lacks them.
    """
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    contract = text.partition(f'name = "{name}"')[2]
    match = re.search(r"^layers = (\[.*?^\])", contract, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"pyproject.toml has no layers in '{name}'; put them back")
    return ast.literal_eval(match[1])


def _sentence(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]
