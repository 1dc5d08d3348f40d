"""What import-linter does not see: modules that are named in texts, or imported for types alone.

A text may name a module of a higher layer, or one that is not there: `sys.modules.get` says nothing then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

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
NO_MODULES = {
    "attention.kernel_calls": {
        "fmha_backward",
        "flash_wheel",
    },  # operators; `fmha` is a function, too
    "attention.library": {"attention_library"},  # as records name it
    "cache.transfer.wheel": {"packs"},  # a group of entry points
    "device": {"devices"},  # likewise
    "ops.copied": {"gemm_op"},  # as records name it
    "worker.devices.lookup": {"devices"},  # the group, in a message
}
"""What is named like a module and is none, by the module with the text: operators, groups of entry points, and modules
under the names that records have for them. (The group `inductor_plugin.templates` has the name of a package.)"""
_ANY = re.compile(rf"(?<![\w./]){PACKAGE}\.(\w+(?:\.\w+)*)(?::(\w+))?")
_IMPORTED = re.compile(rf"\bfrom {PACKAGE}(?:\.([\w.]+))? import (\w+)")
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
    return known


TEXTS = texts()
FACE = TEXTS.pop("")
"""The public face, which is in no layer."""


def module_of(name: str) -> str:
    """Return the module that a dotted name begins with, empty if there is none."""
    while name and name not in TEXTS:
        name = name.rpartition(".")[0]
    return name


def is_upward(module: str, other: str) -> bool:
    """Return whether a module may not import another one: it is in a lower layer, or beside it in the same."""
    own, its = module.partition(".")[0], other.partition(".")[0]
    return own != its and _RANKS[own] >= _RANKS[its]


def strings(text: str) -> Iterator[str]:
    """Yield the texts in a module that may name another one, its docstrings left out."""
    if not _MENTION.search(text):
        return
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and id(node) not in docstrings:
            yield value


def named(text: str) -> Iterator[str]:
    """Yield the modules that the texts in a module name or import."""
    for value in strings(text):
        whole = _NAME.fullmatch(value)
        names = [whole[1]] if whole else [f"{a}.{b}" for a, b in _STATEMENT.findall(value)]
        yield from filter(None, map(module_of, names))


@cache
def attributes(module: str) -> frozenset[str]:
    """Return the names that a module binds outside functions and classes; of the public face those that it exports."""
    names: set[str] = set()
    for node in ast.parse(TEXTS[module] if module else FACE).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.Assign(targets=[ast.Name(id="__all__")], value=exported) if not module:
                names |= {*ast.literal_eval(exported)}
            case ast.Assign() | ast.AnnAssign():
                bound = ast.walk(node)
                names |= {n.id for n in bound if isinstance(n, ast.Name) and not is_read(n)}
            case _:
                pass
    return frozenset(names)


def is_read(name: ast.Name) -> bool:
    """Return whether a name is read where it stands, not bound."""
    return isinstance(name.ctx, ast.Load)


def is_there(name: str, attribute: str = "") -> bool:
    """Return whether a dotted name below the package is a module, or one with something that it has."""
    if attribute:
        return (not name or name in TEXTS) and attribute in attributes(name)
    module, _, last = name.rpartition(".")
    return name in TEXTS or is_there(module, last)


def missing(text: str) -> list[str]:
    """Return the names in a module's texts of what is not there, whole as they are written."""
    return [
        f"{name}:{attribute}" if attribute else name
        for value in strings(text)
        for name, attribute in (*_ANY.findall(value), *_members(value))
        if not is_there(name, attribute)
    ]


def _members(value: str) -> Iterator[tuple[str, str]]:
    for package, name in _IMPORTED.findall(value):
        yield (f"{package}.{name}" if package else name), ""


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


def test_what_texts_name_is_there() -> None:
    modules = {**TEXTS, "": FACE}
    lacking = {module: names for module, text in modules.items() if (names := missing(text))}
    assert {module: {*names} for module, names in lacking.items()} == NO_MODULES


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("inductor_plugin.tuning.runtime", []),
        ("inductor_plugin.tuning.runtimee", ["tuning.runtimee"]),
        ("inductor_plugin.tunin.runtime", ["tunin.runtime"]),
        ("inductor_plugin.worker.devices.cuda:facts", []),
        ("inductor_plugin.worker.devices.cuda:fact", ["worker.devices.cuda:fact"]),
        ("inductor_plugin.ops.sites.site(", []),
        ("inductor_plugin.ops.sites.sit(", ["ops.sites.sit"]),
        ("inductor_plugin.ops.sites.site.call", ["ops.sites.site.call"]),
        ("inductor_plugin.cache", []),
        ("write one with inductor_plugin.record(FILE).", []),
        ("write one with inductor_plugin.recorded(FILE).", ["recorded"]),
        ("import inductor_plugin.backends", ["backends"]),
        ("from inductor_plugin.worker import timer", []),
        ("from inductor_plugin.worker import timers", ["worker.timers"]),
        ("from inductor_plugin.cli.again import child\n", []),
        ("torch.ops.inductor_plugin.mm", []),
    ],
)
def test_a_name_is_looked_for_whole(value: str, names: list[str]) -> None:
    assert missing(f"A = {value!r}") == names


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
