"""Operations on bits, and comparisons."""

from __future__ import annotations

from tests.emulator.codegen.arithmetic import HALVES
from tests.emulator.codegen.opcode import Opcode, Write, chosen, opcode
from tests.emulator.codegen.writer import UnknownError, Writer, numpy_name
from tests.emulator.ptx.syntax import Immediate, Instruction
from tests.emulator.ptx.types import BYTES, value_type

_COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_UNORDERED = {"equ": "!=", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
"""For a comparison that also holds for NaN, the one that does not hold then and is its opposite for numbers."""


def _unsigned(kind: str) -> str:
    return f"u{kind[1:]}" if kind[0] in "bs" and kind[1:].isdigit() else kind


def _bitwise(sign: str) -> Write:
    """Return who writes ``and``, ``or`` or ``xor``."""

    def write(writer: Writer, instruction: Instruction) -> None:
        kind = _unsigned(instruction.type)
        target, a, b = instruction.operands
        both = isinstance(a, Immediate) and isinstance(b, Immediate)
        x, y = writer.value(a, kind, array=both), writer.value(b, kind)
        writer.put(instruction, target, f"{x} {sign} {y}", kind)

    return write


def _not(writer: Writer, instruction: Instruction) -> None:
    kind = _unsigned(instruction.type)
    value = writer.value(instruction.operands[1], kind, array=True)
    writer.put(instruction, instruction.operands[0], f"~{value}", kind)


def _logical_not(writer: Writer, instruction: Instruction) -> None:
    kind = _unsigned(instruction.type)
    value = writer.value(instruction.operands[1], kind, array=True)
    text = f"({value} == 0).astype({numpy_name(value_type(kind))})"
    writer.put(instruction, instruction.operands[0], text, kind)


def _shift(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    kind = _unsigned(kind) if kind[0] == "b" else kind
    left = instruction.name == "shl"
    target, a, b = instruction.operands
    if isinstance(b, Immediate) and not isinstance(a, Immediate):
        count = int(b.value) & 0xFFFFFFFF
        if count < 8 * BYTES[kind]:
            text = f"{writer.value(a, kind)} {'<<' if left else '>>'} {count}"
            writer.put(instruction, target, text, kind)
            return
    function = "shift_left" if left else "shift_right"
    x, y = writer.value(a, kind, array=True), writer.value(b, "u32", array=True)
    writer.put(instruction, target, f"integers.{function}({x}, {y})", kind)


def _funnel(writer: Writer, instruction: Instruction) -> None:
    target, *operands = instruction.operands
    words = ", ".join(writer.value(x, "u32", array=True) for x in operands)
    function = f"funnel_{'left' if instruction.has('l') else 'right'}"
    text = f"integers.{function}({words}, wrap={instruction.has('wrap')})"
    writer.put(instruction, target, text, "u32")


def _comparisons(writer: Writer, instruction: Instruction) -> list[str]:
    """Return an expression for what ``setp`` or ``set`` compares; of two halves in a register one for each, the lower first."""
    kind, how = instruction.type, instruction.parts[1]
    a, b = instruction.operands[1:3]
    if kind not in HALVES:
        kind = _unsigned(kind) if kind[0] == "b" else kind
        x, y = writer.value(a, kind, array=isinstance(b, Immediate)), writer.value(b, kind)
        return [_compared(kind, how, x, y)]
    base = kind.removesuffix("x2")
    words = [writer.value(v, kind, array=True) for v in (a, b)]
    if kind == base:
        pairs = [words]
    else:
        halves = [writer.temporary(f"formats.halves({word})") for word in words]
        pairs = [[f"{name}[{place}]" for name in halves] for place in (0, 1)]
    wide = ([f"formats.{base}_to_f32({word})" for word in pair] for pair in pairs)
    return [_compared("f32", how, x, y) for x, y in wide]


def _compared(kind: str, how: str, x: str, y: str) -> str:
    """Return the comparison of two expressions of a PTX type."""
    if "f" not in kind:
        return f"{x} {_COMPARISONS[how]} {y}"
    if how in ("num", "nan"):
        unordered = f"(np.isnan({x}) | np.isnan({y}))"
        return f"~{unordered}" if how == "num" else unordered
    if how == "ne":
        return f"({x} != {y}) & ({x} == {x}) & ({y} == {y})"
    if how == "neu":
        return f"{x} != {y}"
    if how == "equ":
        return f"({x} == {y}) | ({x} != {x}) | ({y} != {y})"
    if how in _UNORDERED:
        return f"~({x} {_UNORDERED[how]} {y})"
    return f"{x} {_COMPARISONS[how]} {y}"


def _set_predicate(writer: Writer, instruction: Instruction) -> None:
    text, *upper = _comparisons(writer, instruction)
    combine = chosen(instruction, "and or xor")
    other = ""
    if combine or instruction.pair is not None:
        base = writer.temporary(text)
        # The second predicate is of the upper halves, else the opposite.
        text, other = base, f"({upper[0]})" if upper else f"(~{base})"
        if combine:
            sign = {"and": "&", "or": "|", "xor": "^"}[combine]
            third = writer.value(instruction.operands[3], "pred")
            text, other = f"{base} {sign} {third}", f"{other} {sign} {third}"
    if instruction.pair is not None:
        other = writer.temporary(other)  # before the first predicate, which it may read, is written
    writer.put(instruction, instruction.operands[0], text, "pred")
    writer.put(instruction, instruction.pair, other, "pred")


_TRUE = {
    **dict.fromkeys(("u16", "s16"), (16, 0xFFFF)),
    **dict.fromkeys(("u32", "s32"), (32, 0xFFFFFFFF)),
    "f16": (16, 0x3C00),
    "bf16": (16, 0x3F80),
    "f32": (32, 0x3F800000),
}
"""What ``set`` writes where a comparison holds: the bits of -1 or 1.0, and how many they are."""
_TRUE_HALF = {"f16x2": 0x3C00, "bf16x2": 0x3F80, "u32": 0xFFFF, "s32": 0xFFFF}
"""What it writes to each half where it compares halves."""


def _set(writer: Writer, instruction: Instruction) -> None:
    if chosen(instruction, "and or xor"):
        raise UnknownError("set with a predicate")
    kind, target = instruction.parts[-2], instruction.operands[0]
    text, *upper = _comparisons(writer, instruction)
    if kind not in (_TRUE_HALF if upper else _TRUE):
        raise UnknownError(f"{instruction.opcode}: a result of {kind}")
    if upper:
        low, high = (f"np.where({each}, {_TRUE_HALF[kind]}, 0)" for each in (text, upper[0]))
        writer.put(instruction, target, f"formats.pair({high}, {low})", "b32")
        return
    bits, ones = _TRUE[kind]
    result = f"np.where({text}, {ones}, 0).astype(np.uint{bits})"
    writer.put(instruction, target, result, f"b{bits}")


def _select(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    target, a, b, predicate = instruction.operands
    number = numpy_name(value_type(kind))
    x, y = (
        f"{number}({writer.immediate(v, value_type(kind))})"
        if isinstance(v, Immediate)
        else writer.value(v, kind)
        for v in (a, b)
    )
    condition = writer.value(predicate, "pred", array=True)
    writer.put(instruction, target, f"np.where({condition}, {x}, {y})", kind)


def _permute(writer: Writer, instruction: Instruction) -> None:
    target, *operands = instruction.operands
    a, b, selector = (writer.value(x, "b32", array=True) for x in operands)
    mode = chosen(instruction, "f4e b4e rc8 ecl ecr rc16")
    writer.put(instruction, target, f"integers.permute({a}, {b}, {selector}, {mode!r})", "b32")


def _lop3(writer: Writer, instruction: Instruction) -> None:
    target, a, b, c, table = instruction.operands[:5]
    if not isinstance(table, Immediate) or len(instruction.operands) > 5:
        raise UnknownError("lop3 with a predicate, or with a table that is no number")
    words = ", ".join(writer.value(x, "b32", array=True) for x in (a, b, c))
    writer.put(instruction, target, f"integers.lop3({words}, {int(table.value)})", "b32")


def _extract(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    target, a, start, length = instruction.operands
    words = f"{writer.value(start, 'u32')}, {writer.value(length, 'u32')}"
    text = f"integers.extract({writer.value(a, kind, array=True)}, {words})"
    writer.put(instruction, target, text, kind)


def _insert(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    target, a, b, start, length = instruction.operands
    x, y = (writer.value(v, kind, array=True) for v in (a, b))
    words = f"{writer.value(start, 'u32')}, {writer.value(length, 'u32')}"
    writer.put(instruction, target, f"integers.insert({x}, {y}, {words})", kind)


def _counting(function: str, result: str = "u32") -> Write:
    """Return who writes a function of the bits of one operand; ``result`` is empty if it has its type."""

    def write(writer: Writer, instruction: Instruction) -> None:
        kind = instruction.type
        value = writer.value(instruction.operands[1], kind, array=True)
        text = f"integers.{function}({value})"
        writer.put(instruction, instruction.operands[0], text, result or kind)

    return write


def _find(writer: Writer, instruction: Instruction) -> None:
    value = writer.value(instruction.operands[1], instruction.type, array=True)
    text = f"integers.find_highest({value}, shift_amount={instruction.has('shiftamt')})"
    writer.put(instruction, instruction.operands[0], text, "u32")


_COMPARE = f"{' '.join((*_COMPARISONS, *_UNORDERED))} neu num nan and or xor ftz"

OPCODES: dict[str, Opcode] = {
    "and": opcode(_bitwise("&")),
    "or": opcode(_bitwise("|")),
    "xor": opcode(_bitwise("^")),
    "not": opcode(_not),
    "cnot": opcode(_logical_not),
    "shl": opcode(_shift),
    "shr": opcode(_shift),
    "shf": opcode(_funnel, "l r wrap clamp"),
    "setp": opcode(_set_predicate, _COMPARE),
    "set": opcode(_set, _COMPARE),
    "selp": opcode(_select),
    "prmt": opcode(_permute, "f4e b4e rc8 ecl ecr rc16"),
    "lop3": opcode(_lop3),
    "bfe": opcode(_extract),
    "bfi": opcode(_insert),
    "bfind": opcode(_find, "shiftamt"),
    "clz": opcode(_counting("leading_zeros")),
    "popc": opcode(_counting("count_ones")),
    "brev": opcode(_counting("reverse", "")),
}
