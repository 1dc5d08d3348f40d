"""What `doctor` may find, read from its source: each finding that is off or broken, and what to do about it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = "inductor_plugin"
UNKNOWN = "…"
"""Stands for what is known only when `doctor` runs."""


@dataclass(frozen=True)
class _Module:
    """A module as far as texts need it.

    Attributes:
        constants: What is assigned to its names.
        functions: Its functions by name.
        imports: Of a name that is imported from this package, where it is from: a module, and its name there.
    """

    constants: Mapping[str, ast.expr]
    functions: Mapping[str, ast.FunctionDef]
    imports: Mapping[str, tuple[str, str]]


_Scope = dict[str, str]
"""Texts of the local names of a function."""


def findings() -> str:
    """Return a table of what each check of `doctor` may find, in the order in which it prints them."""
    doctor = _module(f"{_PACKAGE}.cli.doctor")
    assert doctor is not None
    lines = ["| Finding | State | It says | What to do |", "|---|---|---|---|"]
    for name in _checks(doctor.functions["examine"]):
        module, function = _defined(doctor, name)
        rows = (tuple(map(_cell, row)) for row in _rows(function, module))
        lines += [f"| {' | '.join(row)} |" for row in dict.fromkeys(rows)]
    return "\n".join(lines) + "\n"


@cache
def _module(name: str) -> _Module | None:
    """Return a module of the package by its dotted name, None if it is none."""
    path = _ROOT / f"{name.replace('.', '/')}.py"
    if not name.startswith(_PACKAGE) or not path.is_file():
        return None
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return _Module(
        {name: value for node in body for name, value in _assigned(node) if value is not None},
        {node.name: node for node in body if isinstance(node, ast.FunctionDef)},
        {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        },
    )


def _checks(examine: ast.FunctionDef) -> Iterator[str]:
    """Yield the functions that `examine` calls for its list, in order."""
    (returned,) = (node.value for node in ast.walk(examine) if isinstance(node, ast.Return))
    assert isinstance(returned, ast.List)
    for call in returned.elts:
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        yield call.func.id


def _defined(module: _Module, name: str) -> tuple[_Module, ast.FunctionDef]:
    """Return a function, and the module that it is in."""
    if name not in module.functions:
        origin, name = module.imports[name]
        imported = _module(origin)
        assert imported is not None
        module = imported
    return module, module.functions[name]


def _rows(function: ast.FunctionDef, module: _Module) -> Iterator[tuple[str, ...]]:
    """Yield name, state, detail and remedy of what a check may find, in the order of its source."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        called = _name_of(call.func)
        if called == "Finding":
            for texts in _arguments(call, function, module):
                row = (*texts, *[UNKNOWN] * (4 - len(texts)))[:4]
                if row[1] != "ok":
                    yield (row[0], row[1].replace(UNKNOWN, "off or broken"), *row[2:])
        elif called in module.functions and _is_returned(call, function):
            yield from _rows(module.functions[called], module)


def _is_returned(call: ast.Call, function: ast.FunctionDef) -> bool:
    """Return whether a function that finds something returns what another one finds."""
    return any(isinstance(n, ast.Return) and n.value is call for n in ast.walk(function))


def _arguments(
    call: ast.Call, function: ast.FunctionDef, module: _Module
) -> Iterator[Sequence[str]]:
    """Yield the arguments of a call as texts; several times where a function gives some of them, which returns at several places."""
    scope = _scope(function, call, module)
    plain = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
    texts = [_text(arg, scope, module) for arg in plain]
    given = [arg.value for arg in call.args if isinstance(arg, ast.Starred)]
    if not given:
        yield texts
        return
    source = module.functions[_giver(given[0], function)]
    for node in ast.walk(source):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            inner = _scope(source, node, module)
            yield texts + [_text(element, inner, module) for element in node.value.elts]


def _giver(value: ast.expr, function: ast.FunctionDef) -> str:
    """Return the name of the function that a local name has its value from."""
    name = _name_of(value)
    for node in ast.walk(function):
        if isinstance(node, ast.NamedExpr) and node.target.id == name:
            assert isinstance(node.value, ast.Call)
            return _name_of(node.value.func)
    raise ValueError(f"{function.name} gives *{name} to a Finding; assign it with :=, as a call")


def _scope(function: ast.FunctionDef, place: ast.AST, module: _Module) -> _Scope:
    """Return the texts that local names have where a function gets to a place."""
    scope = dict.fromkeys((arg.arg for arg in function.args.args), UNKNOWN)
    _enter(function.body, place, scope, module)
    return scope


def _enter(block: Sequence[ast.stmt], place: ast.AST, scope: _Scope, module: _Module) -> None:
    """Put into a scope what a block assigns until it gets to a place. What a branch on the way has assigned is not known."""
    for statement in block:
        inside = _has(statement, place)
        for name, value in () if inside else _assigned(statement):
            scope[name] = UNKNOWN if value is None else _text(value, scope, module)
        for inner in _blocks(statement):
            if inside and any(_has(each, place) for each in inner):
                _enter(inner, place, scope, module)
                return
            if inside or not isinstance(inner[-1], (ast.Return, ast.Raise)):
                scope |= {name: UNKNOWN for each in inner for name, _ in _assigned(each)}
        if inside:
            return


def _has(statement: ast.stmt, place: ast.AST) -> bool:
    return any(node is place for node in ast.walk(statement))


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks inside a statement."""
    holders: list[Any] = [statement, *getattr(statement, "handlers", [])]
    for holder in holders:
        for name in ("body", "orelse", "finalbody"):
            if block := getattr(holder, name, None):
                yield block


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a statement assigns, each with its value; None for one that stands in no expression of its own."""
    if isinstance(statement, ast.AugAssign):
        joined = ast.BinOp(statement.target, statement.op, statement.value)
        yield _name_of(statement.target), joined
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    for target in targets:
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [None] * len(target.elts)
            yield from zip(map(_name_of, target.elts), values, strict=True)
        else:
            yield _name_of(target), value


def _name_of(value: ast.expr) -> str:
    """Return the name that an expression is, empty if it is none."""
    return value.id if isinstance(value, ast.Name) else ""


def _text(value: ast.expr, scope: _Scope, module: _Module) -> str:
    """Return a text as far as it is in the source."""
    if isinstance(value, ast.Constant) and isinstance(value.value, (str, int)):
        return str(value.value)
    if parts := _parts(value):
        return "".join(_text(part, scope, module) for part in parts)
    if isinstance(value, ast.Name) and value.id in scope:
        return scope[value.id]
    if isinstance(value, ast.Call):
        return _returned(_name_of(value.func), module)
    constant = _constant(value, module)
    return _text(constant[0], {}, constant[1]) if constant else UNKNOWN


def _parts(value: ast.expr) -> Sequence[ast.expr]:
    """Return the expressions whose texts make that of an expression; none if it is not made of several."""
    if isinstance(value, ast.JoinedStr):
        return value.values
    if isinstance(value, ast.FormattedValue):
        return [value.value]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return [value.left, value.right]
    return []


def _returned(name: str, module: _Module) -> str:
    """Return the texts that a function of the module returns, with a slash between them; unknown unless all are in the source."""
    function = module.functions.get(name)
    nodes = [n for n in (ast.walk(function) if function else ()) if isinstance(n, ast.Return)]
    ordered = sorted(nodes, key=lambda node: node.lineno)
    returned = [node.value for node in ordered if node.value is not None]
    texts = [value.value for value in returned if isinstance(value, ast.Constant)]
    if not texts or len(texts) < len(returned) or not all(isinstance(t, str) for t in texts):
        return UNKNOWN
    return " / ".join(map(str, texts))


def _constant(value: ast.expr, module: _Module) -> tuple[ast.expr, _Module] | None:
    """Return what a name, ``module.NAME`` or an element of such a tuple was assigned, and the module where it was; None if it is no constant."""
    if isinstance(value, ast.Subscript):
        whole, place = _constant(value.value, module), value.slice
        if whole and isinstance(whole[0], ast.Tuple) and isinstance(place, ast.Constant):
            return whole[0].elts[int(str(place.value))], whole[1]
        return None
    if isinstance(value, ast.Attribute):
        origin, name = module.imports.get(_name_of(value.value), ("", ""))
        return _named(value.attr, _module(f"{origin}.{name}"))
    return _named(_name_of(value), module)


def _named(name: str, module: _Module | None) -> tuple[ast.expr, _Module] | None:
    """Return what a name of a module was assigned, in it or where it is imported from."""
    if module is None or name in module.constants:
        return None if module is None else (module.constants[name], module)
    origin, own = module.imports.get(name, ("", ""))
    return _named(own, _module(origin)) if origin else None


def _cell(text: str) -> str:
    return re.sub(f"{UNKNOWN}+", UNKNOWN, text).replace("|", "\\|")
