from __future__ import annotations

import ast
import inspect
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from inductor_plugin import errors


def test_the_tree_in_the_docstring_is_the_real_one():
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([ │├└─]*)(\w+Error)\b", line)
        if match is None:
            continue
        depth, name = len(match.group(1)), match.group(2)
        while path and path[-1][0] >= depth:
            path.pop()
        drawn[name] = path[-1][1] if path else "Exception"
        path.append((depth, name))
    real = {
        name: kind.__mro__[1].__name__
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }
    assert drawn == real


def test_a_wrong_option_is_a_value_error_too():
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.RegistrationError, ValueError)


@pytest.mark.parametrize(
    ("number", "sticky"), [(700, True), (719, True), (999, True), (1, False), (0, False), (None, False)]
)  # fmt: skip
def test_after_some_errors_of_cuda_no_call_works(number: int | None, sticky: bool):
    assert errors.KernelError("the launch failed", number).is_sticky is sticky


def broad(text: str) -> Iterator[int]:
    """Yield the lines that catch or suppress every exception."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            caught = [node.type] if node.type is not None else [ast.Name("Exception")]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught = node.args
        else:
            continue
        names = [name for each in caught for name in ast.walk(each) if isinstance(name, ast.Name)]
        if any(name.id == "Exception" for name in names):
            yield node.lineno


def without_reason(text: str) -> list[int]:
    """Return those lines that have no comment with words, nor a comment in the line above."""
    lines = text.splitlines()
    comments = {
        number: re.sub(r"noqa: \w+", "", lines[number - 1].partition("#")[2])
        for number in broad(text)
    }
    return [
        number
        for number, comment in comments.items()
        if not re.search(r"\w{2}", comment) and not lines[number - 2].lstrip().startswith("#")
    ]


@pytest.mark.parametrize("root", ["inductor_plugin", "cache", "templates"])
def test_whatever_catches_every_exception_gives_its_reason(root: str, repository: Path) -> None:
    wrong = {
        str(path.relative_to(repository)): lines
        for path in sorted((repository / root).rglob("*.py"))
        if (lines := without_reason(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("except Exception:", True),
        ("except (OSError, Exception) as error:  # noqa: BLE001", True),
        ("except:", True),
        ("except Exception:  # noqa: BLE001  the border: no compile fails for it", False),
        ("except OSError:", False),
    ],
)
def test_a_handler_without_a_reason_is_found(line: str, *, missing: bool) -> None:
    assert bool(without_reason(f"try:\n    pass\n{line}\n    pass\n")) is missing
    assert without_reason("with suppress(Exception):\n    pass\n") == [1]


def test_a_warning_is_one_line_whatever_it_quotes(caplog: pytest.LogCaptureFixture) -> None:
    errors.warn_once(logging.getLogger("a"), "of \x1b]0;owned\x07\nERROR: forged line")
    assert [record.getMessage() for record in caplog.records] == [
        r"inductor-plugin: of \x1b]0;owned\x07\nERROR: forged line"
    ]
