"""PTX text as a `Module`.

Scopes of inline assembly (braces with registers and labels of their own) are flattened: their names get a prefix.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from tests.emulator.ptx.blocks import Code, Label, blocks
from tests.emulator.ptx.operands import operand, split, variable
from tests.emulator.ptx.statements import Statement, statements
from tests.emulator.ptx.syntax import (
    Function,
    Instruction,
    Module,
    Operand,
    Place,
    PtxError,
    Register,
    Symbol,
    Variable,
)
from tests.emulator.ptx.types import BYTES

_HEAD = re.compile(
    r"\.(?P<kind>entry|func)\s+(?:\.\w+\s+)*(?:\([^)]*\)\s*)?(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?"
)
_LIMIT = re.compile(r"\.(\w+)\s+(\d+(?:\s*,\s*\d+)*)")
_GUARD = re.compile(r"@(!?)\s*([%\w$]+)\s+")
_OPCODE = re.compile(r"[\w.:]+")  # some write no space before a vector
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')


def parse(text: str) -> Module:
    """Return a module.

    Raises:
        PtxError: The text is no PTX that is known here; the message has the line.
    """
    pieces = list(statements(text))
    files = {
        match[1]: PurePath(match[2]).name
        for piece in pieces
        if piece.kind == "line" and (match := _FILE.match(piece.text))
    }
    target = re.search(r"^\s*\.target\s+(\w+)", text, re.M)
    module = Module(target[1] if target else "")
    position = 0
    while position < len(pieces):
        piece = pieces[position]
        position += 1
        with_body = position < len(pieces) and pieces[position].kind == "open"
        if piece.kind == "head" and with_body:
            body = _Body(piece, pieces, position, files)
            module.functions[body.name] = body.function()
            position = body.position
        elif piece.kind == "code":
            _declare(module, piece)
    return module


def _declare(module: Module, piece: Statement) -> None:
    if piece.text.startswith((".pragma", ".alias")):
        return
    try:
        declared = variable(piece.text)
    except PtxError as error:
        raise PtxError(f"PTX line {piece.line}: {error}") from error
    group = module.shared if declared.space == "shared" else module.variables
    group[declared.name] = declared


class _Body:
    """Reads one function; after `function`, ``position`` is behind it."""

    def __init__(
        self, head: Statement, pieces: list[Statement], position: int, files: dict[str, str]
    ) -> None:
        match = _HEAD.search(head.text)
        if match is None:
            raise PtxError(f"PTX line {head.line}: {head.text[:100]!r} is no function")
        self.name, self._entry = match["name"], match["kind"] == "entry"
        listed = split(match["parameters"] or "")
        self._parameters = tuple(variable(text) for text in listed)
        self._limits = {
            limit[1]: tuple(int(part) for part in limit[2].split(","))
            for limit in _LIMIT.finditer(head.text, match.end())
        }
        self.position = position
        self._pieces, self._files = pieces, files
        self._registers: dict[str, Register] = {}
        self._locals: dict[str, Variable] = {}
        self._shared: dict[str, Variable] = {}
        self._tables: dict[str, tuple[str, ...]] = {}
        self._code: list[Code] = []
        self._scopes: list[dict[str, str]] = []
        self._prefixes: list[str] = []
        self._opened, self._source, self._table = 0, "", ""

    def function(self) -> Function:
        """Return the function."""
        while True:
            piece = self._pieces[self.position]
            self.position += 1
            try:
                self._take(piece)
            except PtxError as error:
                place = Place(piece.line, self._source)
                raise PtxError(f"{place}: {error}") from error
            if not self._scopes:
                break
        return Function(
            self.name,
            self._entry,
            self._parameters,
            self._registers,
            self._locals,
            self._shared,
            self._limits,
            blocks(self._code, self._tables),
        )

    def _take(self, piece: Statement) -> None:
        if piece.kind == "open":
            self._open()
        elif piece.kind == "close":
            self._scopes.pop()
            self._prefixes.pop()
        elif piece.kind == "line":
            if match := _LOC.match(piece.text):
                self._source = f"{self._files.get(match[1], match[1])}:{match[2]}"
        elif piece.kind == "label":
            name = self._renamed(piece.text) or piece.text
            self._table = name
            self._code.append(Label(name))
        elif piece.text.startswith("."):
            self._directive(piece.text)
        elif piece.text:
            self._code.append(self._instruction(piece))

    def _open(self) -> None:
        """Begin a scope; its labels are renamed now, for a branch may name them before they come."""
        prefix = f"{self._opened}$" if self._opened else ""
        self._opened += 1
        scope: dict[str, str] = {}
        depth = 0
        for piece in self._pieces[self.position :] if prefix else ():
            depth += (piece.kind == "open") - (piece.kind == "close")
            if depth < 0:
                break
            if piece.kind == "label" and not depth:
                scope[piece.text] = prefix + piece.text
        self._scopes.append(scope)
        self._prefixes.append(prefix)

    def _renamed(self, name: str) -> str | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _lookup(self, name: str) -> Register | Symbol | None:
        unique = self._renamed(name)
        if unique is None:
            return None
        return self._registers.get(unique, Symbol(unique))

    def _directive(self, text: str) -> None:
        if match := re.match(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", text, re.S):
            self._declare_registers(match[1], match[2])
        elif text.startswith((".local", ".shared", ".param")):
            declared = variable(text)
            group = self._shared if declared.space == "shared" else self._locals
            group[declared.name] = declared
        elif text.startswith((".branchtargets", ".calltargets")):
            self._tables[self._table] = tuple(
                self._renamed(label) or label for label in split(text.split(None, 1)[1])
            )
        elif not text.startswith((".pragma", ".callprototype")):
            raise PtxError(f"the directive {text[:100]!r} is not known")

    def _declare_registers(self, kind: str, names: str) -> None:
        if kind not in BYTES:
            raise PtxError(f"registers of type {kind!r} are not known")
        for name in split(names):
            many = re.fullmatch(r"([%\w$]+)<(\d+)>", name)
            listed = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            for each in listed:
                unique = self._prefixes[-1] + each
                self._scopes[-1][each] = unique
                self._registers[unique] = Register(unique, kind, len(self._registers))

    def _instruction(self, piece: Statement) -> Instruction:
        text = " ".join(piece.text.split())
        place = Place(piece.line, self._source)
        guard, negated, body = None, False, text
        if match := _GUARD.match(text):
            negated, body = bool(match[1]), text[match.end() :]
            predicate = operand(match[2], self._lookup)
            if not isinstance(predicate, Register):
                raise PtxError(f"{match[2]!r} in {text!r} is no predicate")
            guard = predicate
        head = _OPCODE.match(body)
        if head is None:
            raise PtxError(f"{text!r} has no opcode")
        parts = tuple(part.replace("#", "::") for part in head[0].replace("::", "#").split("."))
        rest = body[head.end() :].strip()
        pair: Operand | None = None
        if parts[0] == "call":
            return Instruction(parts, (), guard, negated, None, text, place)
        words = split(rest)
        if words and "|" in words[0]:
            words[0], second = (word.strip() for word in words[0].split("|"))
            pair = operand(second, self._lookup)
        operands = tuple(operand(word, self._lookup) for word in words)
        return Instruction(parts, operands, guard, negated, pair, text, place)
