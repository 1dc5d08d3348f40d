"""PTX text cut into statements, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.emulator.ptx.syntax import PtxError

Kind = Literal["line", "head", "open", "close", "label", "code"]


@dataclass(frozen=True)
class Statement:
    """A piece of PTX.

    Attributes:
        kind: ``line`` is a directive that ends with its line (``.version``, ``.loc`` ...), ``head`` all of a
            function before its braces, ``code`` an instruction or a declaration.
        text: The text; of a label its name; without semicolon.
        line: Line of its first character, from 1.
    """

    kind: Kind
    text: str
    line: int


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_STATEMENT = re.compile(
    r"""\s*(?:
    (?P<line>\.(?:version|target|address_size|file|loc)\b[^\n]*)
    | (?P<section>\.section\b[^{]*\{)
    | (?P<head>(?:\.(?:visible|weak|extern|common)\s+)*\.(?:entry|func)\b[^{;]*)
    | (?P<open>\{)
    | (?P<close>\})
    | (?P<label>[$%_A-Za-z][\w$]*)\s*:(?!:)
    | ;
    | (?P<code>[^;]*);
    )""",
    re.S | re.X,
)
_NOTHING = re.compile(r"\s*\Z")


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a module; comments and sections for debuggers are left out.

    Raises:
        PtxError: The text ends within a statement.
    """
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n") or " ", text)
    position, line, counted = 0, 1, 0
    while not _NOTHING.match(text, position):
        match = _STATEMENT.match(text, position)
        if match is None:
            raise PtxError(f"the text ends within {text[position : position + 80].strip()!r}")
        position = match.end()
        name = match.lastgroup
        if name is None:
            continue
        line += text.count("\n", counted, match.start(name))
        counted = match.start(name)
        if name == "section":
            position = _behind_braces(text, position)
        else:
            yield Statement(_kind(name), match[name].strip(), line)


def _kind(name: str) -> Kind:
    kinds: dict[str, Kind] = {
        "line": "line",
        "head": "head",
        "open": "open",
        "close": "close",
        "label": "label",
        "code": "code",
    }
    return kinds[name]


def _behind_braces(text: str, position: int) -> int:
    depth = 1
    for brace in re.finditer(r"[{}]", text[position:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return position + brace.end()
    raise PtxError("a section is not closed")
