"""The text of an operand, and of a declaration, as records."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TypeAlias

from tests.emulator.ptx.syntax import (
    SINK,
    Address,
    Immediate,
    Negated,
    Operand,
    PtxError,
    Register,
    Symbol,
    Variable,
    Vector,
)
from tests.emulator.ptx.types import BYTES

Lookup: TypeAlias = Callable[[str], Register | Symbol | None]
"""Returns what a name means in its scope, or None if nothing there has it."""

_ADDRESS = re.compile(r"([^+]+?)\s*(?:\+\s*(-?\w+))?")
_DECLARATION = re.compile(
    r"\.(?P<space>global|shared|const|local|param)\s+"
    r"(?P<before>(?:\.\w+\s+(?:\d+\s+)?)*?)(?:\.align\s+(?P<align>\d+)\s+)?(?P<between>(?:\.\w+\s+)*?)"
    r"\.(?P<type>\w+)\s+(?P<name>[\w$%]+)(?P<extents>(?:\[[^\]]*\])*)\s*(?:=\s*(?P<initial>.*))?",
    re.S,
)
_LINKAGE = re.compile(r"^(?:\.(?:visible|weak|extern|common)\s+)+")
_POINTEE = re.compile(r"\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?")


def split(text: str) -> list[str]:
    """Return the parts of a text between commas that are in no brackets."""
    parts: list[str] = []
    depth, begin = 0, 0
    for place, char in enumerate(text):
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and not depth:
            parts.append(text[begin:place].strip())
            begin = place + 1
    last = text[begin:].strip()
    return [*parts, last] if last else parts


def number(word: str) -> Immediate | None:
    """Return a number, or None if the word is none."""
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", word):
        return Immediate(struct.unpack(">f", bytes.fromhex(match[1]))[0], "f32")
    if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", word):
        return Immediate(struct.unpack(">d", bytes.fromhex(match[1]))[0], "f64")
    if match := re.fullmatch(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]+|\d+)U?", word):
        digits = match[2]
        octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
        value = int(digits, 8 if octal else 0)
        return Immediate(-value if match[1] else value, "int")
    if re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", word):
        return Immediate(float(word), "f64")
    return None


def operand(text: str, lookup: Lookup) -> Operand:
    """Return the operand that a text is.

    Raises:
        PtxError: It is none.
    """
    if text == "_":
        return SINK
    if text.startswith("{"):
        return Vector(tuple(operand(part, lookup) for part in split(text[1:-1])))
    if text.startswith("["):
        return _address(text, lookup)
    if text.startswith("!"):
        register = operand(text[1:].strip(), lookup)
        if isinstance(register, Register):
            return Negated(register)
        raise PtxError(f"{text!r} negates no predicate")
    if (value := number(text)) is not None:
        return value
    if (meaning := lookup(text)) is not None:
        return meaning
    if match := re.fullmatch(r"([$\w%.]+)\s*\+\s*(-?\w+)", text):
        return Symbol(match[1], int(match[2], 0))
    if re.fullmatch(r"[$%_A-Za-z][\w$%.]*", text):
        return Symbol(text)
    raise PtxError(f"{text!r} is no operand")


def _address(text: str, lookup: Lookup) -> Address:
    first, *rest = split(text[1:-1])
    match = _ADDRESS.fullmatch(first)
    if match is None:
        raise PtxError(f"{text!r} is no address")
    base = operand(match[1].strip(), lookup)
    offset = int(match[2], 0) if match[2] else 0
    return Address(base, offset, tuple(operand(part, lookup) for part in rest))


def variable(text: str) -> Variable:
    """Return what a declaration declares.

    Raises:
        PtxError: It declares no variable.
    """
    # What a pointer points to says nothing of the parameter itself.
    plain = _POINTEE.sub("", _LINKAGE.sub("", text)).strip()
    match = _DECLARATION.fullmatch(plain)
    if match is None or match["type"] not in BYTES:
        raise PtxError(f"{text[:200]!r} declares no variable")
    width = BYTES[match["type"]]
    size = width
    for extent in re.findall(r"\[([^\]]*)\]", match["extents"]):
        size *= int(extent, 0) if extent.strip() else 0
    align = match["align"]
    if align is None and (other := re.search(r"\.align\s+(\d+)", match["before"])):
        align = other[1]
    initial = _initial(match["initial"] or "", width)
    return Variable(match["name"], match["space"], size, int(align or width), initial)


def _initial(text: str, width: int) -> bytes:
    words = [word.strip() for word in re.sub(r"[{}]", "", text).split(",")]
    return b"".join(_bytes_of(word, width) for word in words if word)


def _bytes_of(word: str, width: int) -> bytes:
    value = number(word)
    if value is None:
        raise PtxError(f"{word!r} as a first value: only numbers are known, no addresses")
    if value.type == "int":
        return (int(value.value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return struct.pack("<f" if value.type == "f32" else "<d", value.value)
