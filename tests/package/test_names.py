"""Rules 2 and 10 of CONTRIBUTING.md, as far as a program can see them: no binding is called by a word that names nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

EVERYWHERE = {"found", "made", "told"}
PRODUCT = EVERYWHERE | {"home", "note", "one", "standing"}
TESTS = PRODUCT - {"home", "note"}
"""Tests have the folders ``CUDA_HOME`` and ``XDG_CACHE_HOME``, and functions that note something."""


def bindings(text: str) -> dict[str, int]:
    """Return the names that a module binds, with the line of one of their bindings.

    In lower case and without underscores around them: a constant ``ONE`` or an attribute ``self._one`` says as little
    as ``one``. As a part of a longer name it may stay.
    """
    names: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.alias(asname=str(name))
            ):
                names[name.strip("_").lower()] = node.lineno
            case _:
                pass
    return names


def may_bind(text: str, words: set[str]) -> bool:
    """Return False for a module that binds none of the words: to parse all of them takes 5 s.

    A name that is bound is followed by what assigns it or ends it, by ``in``, or by what ends its line early; or it
    follows ``as``.
    """
    names = "|".join(words)
    ends = r"[-+*/|&@%^<>]*=|[:,)\](\[#\\]|in\b"
    bound = rf"(?<![^\W_])(?:{names})_*\s*(?:{ends})|\bas\s+_*(?:{names})_*\b"
    return re.search(bound, text, re.IGNORECASE) is not None


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("inductor_plugin", PRODUCT),
        ("templates", PRODUCT),
        ("cache", PRODUCT),
        ("benchmarks", PRODUCT),
        ("tests", TESTS),
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


def reasons_without_none(text: str) -> list[str]:
    """Return the functions ``why_not...`` of a module that are not said to return None where nothing is against it."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and node.name.strip("_").startswith("why_not")
        and not (node.returns and ast.unparse(node.returns).endswith("| None"))
    ]


OTHERWISE_NAMED = {
    "inductor_plugin": {
        *("flash", "efficient", "cudnn"),  # rules of a table: of the gates of library kernels
        *("spilling", "guard_registers", "beaten"),  # rules of pruning, one after the other
        "can_implement",  # CUTLASS's own term
        "reject",  # of the interface `Template`
    },
    "templates": {
        "reject",
        "too_many",
        "too_old",
    },  # the interface, and rules that several templates share
    "cache": {"check", "damage_of_folder"},  # what is wrong with bytes
}
"""Public functions that return in words why something is not done, and have another name; CONTRIBUTING.md has the rule."""


def reasons_otherwise_named(text: str) -> list[str]:
    """Return the public functions of a module that say why in words or return None, and are not called ``why_not...``."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith(("_", "why_not"))
        and (ast.get_docstring(node) or "").startswith("Return why")
        and node.returns
        and ast.unparse(node.returns) == "str | None"
    ]


@pytest.mark.parametrize("root", ["inductor_plugin", "templates", "cache"])
def test_what_returns_a_reason_is_called_why_not(root: str, repository: Path) -> None:
    texts = [file.read_text(encoding="utf-8") for file in (repository / root).rglob("*.py")]
    saying = [text for text in texts if '"""Return why' in text]
    assert saying
    assert {name for text in saying for name in reasons_otherwise_named(text)} == OTHERWISE_NAMED[
        root
    ]


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("def slow(x) -> str | None", ["slow"]),
        ("def why_not_slow(x) -> str | None", []),
        ("def _slow(x) -> str | None", []),
        ("def slow(x) -> str", []),  # empty where nothing is against it
    ],
)
def test_a_reason_under_another_name_is_seen(head: str, names: list[str]) -> None:
    assert reasons_otherwise_named(f'{head}:\n    """Return why a kernel is slow."""') == names


@pytest.mark.parametrize("root", ["inductor_plugin", "templates", "cache"])
def test_what_returns_why_not_returns_none_where_nothing_is_against_it(
    root: str, repository: Path
) -> None:
    texts = [file.read_text(encoding="utf-8") for file in (repository / root).rglob("*.py")]
    defined = [text for text in texts if "def why_not" in text or "def _why_not" in text]
    assert defined
    # What runs on a node of a farm wraps each of its results.
    names = [name for text in defined for name in reasons_without_none(text)]
    assert names == (["why_not_available"] if root == "inductor_plugin" else [])
    assert reasons_without_none("def _why_not(x) -> str: ...") == ["_why_not"]


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
        "import a as made",
        "from a import b as made",
        "from a import b as _made",
        "MADE = 1",
        "_MADE: int = 1",
        "self.made = 1",
        "self._made: int",
        "a.MADE, b = c",
        "a.b[0].made += 1",
        "for a.made in x: ...",
        "with a as b.made: ...",
        "async def made(): ...",
        "try: ...\nexcept E as made: ...",
        "match a:\n    case E(made): ...",
    ],
)
def test_each_kind_of_binding_is_seen(text: str) -> None:
    assert may_bind(text, {"found", "made"})
    assert "made" in bindings(text)


@pytest.mark.parametrize(
    "text", ["a = b.made", "f(made=1)", "MADE_SHARE = 1", "self.made_here = 1"]
)
def test_what_is_read_or_longer_is_none(text: str) -> None:
    assert "made" not in bindings(text)


_IMPORTED_AS = re.compile(
    r"^ *(?:from (?P<package>[\w.]+) )?import (?P<name>[\w.]+) as (?P<alias>\w+)", re.MULTILINE
)
"""ruff gives each import with an alias a line of its own."""


def foreign_aliases(text: str, repository: Path) -> list[str]:
    """Return the aliases of modules of this repository that have a word which is not in the module's path.

    Such a word may be what the module was called before it was moved. A ``__main__`` has no name of its own.
    """
    foreign: list[str] = []
    for match in _IMPORTED_AS.finditer(text):
        path = ".".join(filter(None, (match["package"], match["name"])))
        file = repository / path.replace(".", "/")
        if match["name"].endswith("__main__") or not (
            file.is_dir() or file.with_suffix(".py").is_file()
        ):
            continue
        if set(match["alias"].split("_")) - {*re.split(r"[._]", path), "module"}:
            foreign.append(match["alias"])
    return foreign


@pytest.mark.parametrize("root", ["tests", "benchmarks"])
def test_a_module_is_imported_under_words_of_its_path(root: str, repository: Path) -> None:
    files = sorted((repository / root).rglob("*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    assert any(_IMPORTED_AS.search(text) for text in texts.values())
    assert [
        f"{file.relative_to(repository)}: {alias}"
        for file, text in texts.items()
        for alias in foreign_aliases(text, repository)
    ] == []


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("from inductor_plugin.kernels import nvcc as cuda_toolkit", ["cuda_toolkit"]),
        ("    from inductor_plugin.ops import int4 as int4_op", ["int4_op"]),
        ("import inductor_plugin.worker.timer as measure", ["measure"]),
        ("from inductor_plugin.templates import cutlass as gemm", ["gemm"]),  # a package
        ("from inductor_plugin.kernels import nvcc as nvcc_module", []),
        ("from inductor_plugin.worker.child import compile as child_compile", []),
        ("from inductor_plugin.kernels.nvcc import find as search", []),  # a function
        ("import numpy as np", []),
        ("import benchmarks.fleet.__main__ as program", []),
    ],
)
def test_a_word_of_another_path_is_seen(text: str, foreign: list[str], repository: Path) -> None:
    assert foreign_aliases(text, repository) == foreign
