"""What import-linter does not see: modules of a higher layer that are named in texts, or imported for types alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from docs.architecture import layer_rows
from tests.support.repository import REPOSITORY

PACKAGE = "inductor_plugin"
BY_NAME = {
    ("device", "worker.event_timer"),
    ("ops", "attention.cutlass"),
    ("repro.body", "cli.again.child"),
    ("templates.attention_math", "attention.math"),
    ("worker.bench_farm.node", "tuning.environment"),
}
"""(module, module of a higher layer) of each name in a text; ARCHITECTURE.md has the reasons."""
FOR_TYPES = {("device", "worker.event_timer")}
"""The same for imports under TYPE_CHECKING."""
CYCLES = {
    ("aot.lack", "aot.precompile"),
    ("device", "worker.event_timer"),
    ("tuning.ticket", "tuning.ranks.agreed"),
    ("tuning.ticket", "tuning.selection"),
}
"""Imports under TYPE_CHECKING of a module that imports the importer, at once or through others."""
_NAME = re.compile(rf"{PACKAGE}\.([\w.]+)(?::\w+)?")
_STATEMENT = re.compile(rf"^\s*(?:import|from) {PACKAGE}\.([\w.]+)(?: import (\w+))?", re.MULTILINE)
_MENTION = re.compile(rf"^(?!from ).*{PACKAGE}\.", re.MULTILINE)
"""What a module has that names another one otherwise than by its own imports."""
_RANKS = {
    name: rank for rank, row in enumerate(layer_rows(REPOSITORY)) for name in row.split(" | ")
}


def texts() -> dict[str, str]:
    """Return the modules of the product, by their names in the package."""
    known: dict[str, str] = {}
    for root in (PACKAGE, "templates", "cache"):
        for path in (REPOSITORY / root).rglob("*.py"):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            parts = parts[1:] if root == PACKAGE else parts
            name = ".".join(part for part in parts if part != "__init__")
            known[name] = path.read_text(encoding="utf-8")
    del known[""]  # the public face, which is in no layer
    return known


TEXTS = texts()


def module_of(name: str) -> str:
    """Return the module that a dotted name begins with, empty if there is none."""
    while name and name not in TEXTS:
        name = name.rpartition(".")[0]
    return name


def is_upward(module: str, other: str) -> bool:
    """Return whether a module may not import another one: it is in a lower layer, or beside it in the same."""
    own, its = module.partition(".")[0], other.partition(".")[0]
    return own != its and _RANKS[own] >= _RANKS[its]


def named(text: str) -> Iterator[str]:
    """Yield the modules that the texts in a module name or import, its docstrings left out."""
    if not _MENTION.search(text):
        return
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and id(node) not in docstrings:
            whole = _NAME.fullmatch(value)
            names = [whole[1]] if whole else [f"{a}.{b}" for a, b in _STATEMENT.findall(value)]
            yield from filter(None, map(module_of, names))


@cache
def imported(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules that one imports at run time, and those for types alone."""
    nodes = list(ast.walk(ast.parse(TEXTS[module])))
    of_types = {
        id(statement)
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
    }
    sides: tuple[set[str], set[str]] = set(), set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            sides[id(node) in of_types].update(
                module_of(name.removeprefix(f"{PACKAGE}.")) for name in names
            )
    return frozenset(sides[0]), frozenset(sides[1])


def reaches(module: str, other: str) -> bool:
    """Return whether a module imports another one at run time, at once or through others."""
    seen, waiting = {module}, [module]
    while waiting and other not in seen:
        new = imported(waiting.pop())[0] - seen
        seen |= new
        waiting += new
    return other in seen


def test_texts_name_modules_of_higher_layers_only_where_the_architecture_says_so() -> None:
    upward = {
        (module, other)
        for module, text in TEXTS.items()
        for other in named(text)
        if is_upward(module, other)
    }
    assert upward == BY_NAME


def test_types_are_imported_from_higher_layers_and_in_cycles_only_where_it_says_so() -> None:
    edges = {
        (module, other)
        for module, text in TEXTS.items()
        if "if TYPE_CHECKING:" in text
        for other in imported(module)[1]
    }
    assert {edge for edge in edges if is_upward(*edge)} == FOR_TYPES
    assert {edge for edge in edges if reaches(edge[1], edge[0])} == CYCLES


def test_the_architecture_names_each() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    layers = text.partition("## Layers")[2].partition("\n## ")[0]
    for module in {name for pair in BY_NAME | FOR_TYPES | CYCLES for name in pair}:
        path = module.replace(".", "/")
        assert f"`{path}.py`" in layers or f"`{path}/__init__.py`" in layers, module


def test_a_name_of_a_higher_layer_is_found_in_a_text_and_in_a_statement_of_one() -> None:
    text = (
        '"""See inductor_plugin.tuning.runtime."""\nA = "inductor_plugin.tuning.runtime:stats"\n'
        'B = "import inductor_plugin.cli.demo"\nC = "inductor_plugin.record(FILE)"\n'
    )
    assert list(named(text)) == ["tuning.runtime", "cli.demo"]
    assert is_upward("worker.jobs", "tuning.runtime")
    assert not is_upward("tuning.runtime", "worker.jobs")
