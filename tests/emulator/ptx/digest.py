"""Digest of a kernel's PTX: equal where two compilations run the same instructions, whatever else differs between their texts.

A text also has places in source files, names after a digest of the source, and other kernels of one unit; none of it runs. nvcc may make
other instructions of the same function in another unit, though.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from tests.emulator.ptx.statements import Statement, statements
from tests.emulator.ptx.syntax import PtxError

_NAMED = re.compile(r"\b(?:entry|func)\s+(?:\.\w+\s+)*(?:\([^)]*\)\s*)?([\w$]+)")
_OF_THE_FILE = re.compile(r"(?:_INTERNAL_|_GLOBAL__N__)\w*?_cpp_[0-9a-f]{8}")
"""What nvcc puts into names of a file's own things."""
_OF_THE_UNIT = re.compile(r"_ZN\d+unit_\w*?_[0-9a-f]{16}(\w+)")
"""What a kernel declares for itself, where it shares a unit with others (`inductor_plugin.kernels.unit.namespace`)."""
_OWN = re.compile(r"(\d+)([a-zA-Z_]\w*)E")
"""A mangled name's last part, and only one: its length, and the name that it has outside of a namespace."""
_WORDS = re.compile(r"(?<![.\w$])[\w$]+")
"""Names, among them no parts of an opcode: a kernel that has ``ld.shared`` does not use a variable ``shared``."""
_BLOCK = re.compile(r"(\$L__BB)\d+_")
"""Labels have the function's number in its file."""
_DEBUGGING = re.compile(r"\$L__(?:tmp|func)\w*")


def digest(text: str, kernel: str) -> str:
    """Return a digest of what a kernel of a module runs: its target, its code and the variables that it names.

    Args:
        text: The module.
        kernel: Name of the kernel.

    Raises:
        PtxError: There is no such kernel, or the text ends within a statement.
    """
    target, function, declared = "", list[str](), list[str]()
    inside, depth = False, 0
    for piece in statements(text):
        if piece.text.startswith(".target"):
            target = piece.text
        elif piece.kind == "head":
            named = _NAMED.search(piece.text)
            inside = named is not None and named[1] == kernel
        depth += {"open": 1, "close": -1}.get(piece.kind, 0)
        if inside:
            function += _lines(piece)
        elif piece.kind == "code" and not depth:
            declared.append(piece.text)
        if piece.kind == "close" and not depth:
            inside = False
    if not function:
        raise PtxError(f"no kernel {kernel}")
    code = "\n".join(function)
    words, used = set(_WORDS.findall(code)), list[str]()
    while more := [each for each in declared if each not in used and _name(each) in words]:
        used += more  # what these are initialised with is used, too
        words.update(word for each in more for word in _WORDS.findall(each))
    used.sort()
    neutral = _OF_THE_FILE.sub("", "\n".join((target, *used, code)).replace(kernel, "kernel"))
    neutral = _OF_THE_UNIT.sub(_alone, neutral)
    return hashlib.sha256(_BLOCK.sub(r"\1_", neutral).encode()).hexdigest()[:16]


def _alone(name: re.Match[str]) -> str:
    """Return the name that something has if its kernel is compiled alone."""
    own = _OWN.fullmatch(name[1])
    return own[2] if own and len(own[2]) == int(own[1]) else f"_ZN{name[1]}"


def _lines(piece: Statement) -> Iterator[str]:
    """Yield a statement as a line, unless it is for debuggers."""
    if piece.kind != "line" and not _DEBUGGING.fullmatch(piece.text):
        yield f"{piece.kind} {' '.join(piece.text.split())}"


def _name(declaration: str) -> str:
    """Return the name of a variable."""
    words = re.findall(r"[\w$]+", declaration.partition("=")[0].partition("[")[0])
    return words[-1] if words else declaration
