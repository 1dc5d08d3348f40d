"""What the user is told names the plugin, and comes once."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from inductor_plugin import errors
from tests.support.warned import forget

WARNERS = {
    ("logger", "warning"),
    ("logger", "error"),
    ("logger", "exception"),
    ("warnings", "warn"),
}


def unnamed(text: str) -> Iterator[int]:
    """Yield the lines where a module warns with a text that does not begin with the plugin's name."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        name = owner.id if isinstance(owner, ast.Name) else ""
        if (name, node.func.attr) in WARNERS and not begins_with_name(node.args[0]):
            yield node.lineno


def begins_with_name(message: ast.expr) -> bool:
    if isinstance(message, ast.JoinedStr):
        message = message.values[0]
        if isinstance(message, ast.FormattedValue):
            return isinstance(message.value, ast.Name) and message.value.id == "NAME"
    return isinstance(message, ast.Constant) and str(message.value).startswith(errors.NAME)


def test_every_warning_begins_with_the_plugins_name(repository: Path) -> None:
    wrong = [
        f"{path.relative_to(repository)}:{line}"
        for root in ("inductor_plugin", "cache", "templates")
        for path in sorted((repository / root).rglob("*.py"))
        if path.name != "errors.py"  # `warn_once` itself
        for line in unnamed(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("logger.warning('inductor-plugin: off')", True),
        ("logger.warning('off')", False),
        ("warnings.warn(f'{NAME}off', RuntimeWarning)", True),
        ("warnings.warn(f'{reason}', RuntimeWarning)", False),
        ("logger.exception('off')", False),
        ("logger.debug('off')", True),
    ],
)
def test_the_rule_is_held(call: str, named: bool) -> None:
    assert (list(unnamed(call)) == []) == named


def test_a_warning_is_given_once_until_it_may_be_given_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("inductor_plugin.test")
    for text in ("the cache is full", "the cache is full", "the disk is full"):
        errors.warn_once(logger, text)
    assert [record.getMessage() for record in caplog.records] == [
        "inductor-plugin: the cache is full",
        "inductor-plugin: the disk is full",
    ]
    errors.warn_once(logger, "12 problems were missing", topic="missing")
    errors.warn_once(logger, "13 problems were missing", topic="missing")
    forget()
    errors.warn_once(logger, "the cache is full")
    assert len(caplog.records) == 4
