"""Which tests of a file are marked slow, read from its text, against the seconds that they took.

A mark is written at a function, for a whole file, or at values of a function's or a fixture's parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.support.tiers.selection import LONGEST_S

SLOW = re.compile(r"mark\.slow\b")
SHORT_S = 5.0
"""What takes less is not marked slow. Between this and `LONGEST_S` it depends on what else a run would take."""


@dataclass(frozen=True)
class _Value:
    """A value of parameters: how its part of a case's name reads, whether that is all literal, and whether it is slow."""

    pattern: str
    literal: bool
    slow: bool

    def is_of(self, case: str) -> bool:
        """Return whether a case, by what is in its brackets, may have this value."""
        return re.search(rf"(?:^|-)(?:{self.pattern})(?:-|$)", case) is not None


def long_and_unmarked(names: Mapping[str, float], text: str) -> list[str]:
    """Return what took longer than `LONGEST_S` and is not marked slow.

    Where only values are marked, a case is as slow as the values that it has. A name of which the text computes a part (a
    loop's variable) may be any, and a mark with a condition counts as one. A mean is excused by a value whose cases have
    no figures of their own: it may be of them.
    """
    tree = ast.parse(text)
    functions = {node.name: node for node in _functions(tree)}
    fixtures, named = _fixtures(functions.values()), _assigned(tree)
    of_file = _of_file(tree)
    return [
        name
        for name in sorted(names)
        if names[name] > LONGEST_S
        and (function := functions[name.partition("[")[0]])
        and not SLOW.search(of_file)
        and not any(map(_is_slow, function.decorator_list))
        and not any(
            _excuses(values, name, names) for values in _parameters(function, fixtures, named)
        )
    ]


def short_and_slow(names: Mapping[str, float], text: str) -> list[str]:
    """Return the functions of a file that are marked slow and are not, by the seconds of their longest case.

    A mark of the whole file is right if one function is long: what they share is in the seconds of the first that runs.
    """
    longest: dict[str, float] = {}
    for name, seconds in names.items():
        function = name.partition("[")[0]
        longest[function] = max(seconds, longest.get(function, 0.0))
    tree = ast.parse(text)
    own = {node.name: " ".join(map(ast.unparse, node.decorator_list)) for node in _functions(tree)}
    short = [function for function, seconds in longest.items() if seconds < SHORT_S]
    if SLOW.search(_of_file(tree)):
        return short if len(short) == len(longest) else []
    return [function for function in short if SLOW.search(own[function])]


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Return what names of the file stand for: several functions may have the same parameters."""
    lines = [node for node in tree.body if isinstance(node, ast.Assign)]
    return {ast.unparse(target): node.value for node in lines for target in node.targets}


def _of_file(tree: ast.Module) -> str:
    """Return the marks of the file, as text."""
    lines = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    return " ".join(line for line in lines if line.startswith("pytestmark"))


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _is_slow(decorator: ast.expr) -> bool:
    """Return whether a decorator is the mark itself, not values of which some have it."""
    return ast.unparse(decorator) == "pytest.mark.slow"


def _fixtures(functions: Iterable[ast.FunctionDef]) -> dict[str, list[ast.expr]]:
    """Return the decorators of the fixtures among some functions, by the fixtures' names."""
    fixtures: dict[str, list[ast.expr]] = {}
    for function in functions:
        text = " ".join(map(ast.unparse, function.decorator_list))
        if "fixture(" in text:
            renamed = re.search(r"\bname='(\w+)'", text)
            fixtures[renamed[1] if renamed else function.name] = function.decorator_list
    return fixtures


def _parameters(
    function: ast.FunctionDef,
    fixtures: Mapping[str, list[ast.expr]],
    named: Mapping[str, ast.expr],
) -> Iterator[list[_Value]]:
    """Yield the values of each parameter of a function: of its own, and of the fixtures that it takes from its file."""
    decorators = [*function.decorator_list]
    for argument in function.args.args:
        decorators += fixtures.get(argument.arg, [])
    for written in decorators:
        decorator = named.get(ast.unparse(written), written)
        if isinstance(decorator, ast.Call):
            yield _values(decorator)


def _values(decorator: ast.Call) -> list[_Value]:
    """Return the values in a decorator; of a loop the one that it makes them by."""
    keywords = {each.arg: each.value for each in decorator.keywords}
    values = keywords.get("params", keywords.get("argvalues", *decorator.args[1:2]))
    elements, ids = _listed(values), keywords.get("ids")
    named = _listed(ids) if isinstance(ids, ast.List) else [ids] * len(elements)
    return [_value(element, of_list) for element, of_list in zip(elements, named, strict=False)]


def _listed(values: ast.expr | None) -> list[ast.expr]:
    listed = values.elts if isinstance(values, ast.List | ast.Tuple) else [values]
    inner = [each.value if isinstance(each, ast.Starred) else each for each in listed if each]
    return [
        each.elt if isinstance(each, ast.GeneratorExp | ast.ListComp) else each for each in inner
    ]


def _value(element: ast.expr, named: ast.expr | None) -> _Value:
    marks, parts = "", element.elts if isinstance(element, ast.Tuple) else [element]
    if isinstance(element, ast.Call) and ast.unparse(element.func) == "pytest.param":
        keywords = {each.arg: each.value for each in element.keywords}
        marks = ast.unparse(keywords["marks"]) if "marks" in keywords else ""
        parts, named = element.args, keywords.get("id", named)
    parts = [named] if named is not None else parts
    patterns = [_pattern(part) for part in parts]
    whole = "-".join(pattern or ".+" for pattern in patterns)
    return _Value(whole, all(patterns), SLOW.search(marks) is not None)


def _pattern(part: ast.expr) -> str:
    """Return how a part of a value's name reads, empty if the text does not say it."""
    return re.escape(str(part.value)) if isinstance(part, ast.Constant) else ""


def _excuses(values: list[_Value], name: str, names: Mapping[str, float]) -> bool:
    """Return whether a marked value among those of a parameter is that of a case, or may be in a function's mean."""
    function, _, case = name.removesuffix("]").partition("[")
    slow = [value for value in values if value.slow]
    if not case:
        cases = [each.removesuffix("]") for each in names if each.startswith(f"{function}[")]
        own = [each.partition("[")[2] for each in cases]
        return any(not value.literal or not any(map(value.is_of, own)) for value in slow)
    of_others = any(value.literal and value.is_of(case) for value in values if not value.slow)
    return any(value.is_of(case) and (value.literal or not of_others) for value in slow)
