"""What `doctor` may find, read from its source: each finding that is off or broken, and what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_DOCTOR = _ROOT / "inductor_plugin" / "cli" / "doctor.py"
_UNKNOWN = "…"
"""Stands for what is known only when `doctor` runs."""


def findings() -> str:
    """Return a table of what each check of `doctor` may find, in the order in which it prints them."""
    functions = dict(_functions())
    lines = ["| Finding | State | It says | What to do |", "|---|---|---|---|"]
    for check in _checks(functions["examine"]):
        for name, state, detail, remedy in _rows(functions[check]):
            lines.append(f"| {name} | {state} | {_cell(detail)} | {_cell(remedy)} |")
    return "\n".join(lines) + "\n"


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of `doctor`, after those of the modules of the command line that it imports."""
    doctor = ast.parse(_DOCTOR.read_text(encoding="utf-8"))
    modules = [node.module or "" for node in doctor.body if isinstance(node, ast.ImportFrom)]
    paths = [
        _ROOT / f"{module.replace('.', '/')}.py"
        for module in modules
        if module.startswith("inductor_plugin.cli.")
    ]
    for tree in (*(ast.parse(path.read_text(encoding="utf-8")) for path in paths), doctor):
        yield from ((node.name, node) for node in tree.body if isinstance(node, ast.FunctionDef))


def _checks(examine: ast.FunctionDef) -> Iterator[str]:
    """Yield the functions that `examine` calls for its list, in order."""
    (returned,) = (node.value for node in ast.walk(examine) if isinstance(node, ast.Return))
    assert isinstance(returned, ast.List)
    for call in returned.elts:
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        yield call.func.id


def _rows(function: ast.FunctionDef) -> Iterator[tuple[str, str, str, str]]:
    names = _assigned(function)
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Finding":
            continue
        texts = [_text(argument, names) for argument in node.args]
        name, state, detail, remedy = (*texts, *[_UNKNOWN] * (4 - len(texts)))[:4]
        if state != "ok":
            yield name, state.replace(_UNKNOWN, "off or broken"), detail, remedy


def _assigned(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Return the values of local names, where there is one."""
    names: dict[str, ast.expr] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                names[target.id] = node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
                names |= {left.id: value for left, value in pairs if isinstance(left, ast.Name)}
    return names


def _text(value: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """Return a text as far as it is in the source."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(_text(part, names) for part in value.values)
    if isinstance(value, ast.FormattedValue):
        return _text(value.value, names)
    if isinstance(value, ast.Name) and value.id in names:
        others = {name: node for name, node in names.items() if name != value.id}
        return _text(names[value.id], others)
    return _UNKNOWN


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
