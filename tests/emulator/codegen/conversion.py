"""``cvt``: from one number format to another."""

from __future__ import annotations

from tests.emulator.codegen.arithmetic import chosen_limit
from tests.emulator.codegen.opcode import Opcode, chosen, opcode
from tests.emulator.codegen.writer import UnknownError, Writer, numpy_name
from tests.emulator.ptx.syntax import Instruction
from tests.emulator.ptx.types import value_type

_FLOATS = ("f32", "f64")
_FLOAT8 = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_LIMITED = (*_FLOAT8, "f16", "bf16", "f16x2", "bf16x2", "tf32")
"""Results of ``.relu`` and ``.satfinite``; those of 8 bits are always finite."""


_PACKED = {("s8", "s32", "b32"), ("u8", "s32", "b32"), ("sat", "s16", "s32"), ("sat", "u16", "s32")}
"""Last words of ``cvt.pack``; results of 8 bits lie below a third operand."""


def _convert(writer: Writer, instruction: Instruction) -> None:
    if instruction.has("pack"):
        _pack(writer, instruction)
        return
    target, origin = instruction.parts[-2:]
    limits = sorted({"relu", "satfinite"} & set(instruction.parts))
    if limits and (target not in _LIMITED or instruction.has("sat")):
        raise UnknownError(f"{instruction.opcode}: .{' .'.join(limits)}")
    if target in _FLOAT8:
        _to_float8(writer, instruction, _FLOAT8[target], origin)
    elif origin in _FLOAT8:
        _from_float8(writer, instruction, _FLOAT8[origin], target)
    elif target in ("f16x2", "bf16x2"):
        _to_pair(writer, instruction, target.removesuffix("x2"))
    elif target == "tf32":
        rounding = chosen(instruction, "rna rn rz", "rna")
        value = writer.value(instruction.operands[1], "f32", array=True)
        bits = f"flat({_limited(instruction, value, target)}).view(np.uint32)"
        text = f"formats.to_tf32({bits}, {rounding!r})"
        writer.put(instruction, instruction.operands[0], text, "b32")
    else:
        _scalar(writer, instruction, target, origin)


def _pack(writer: Writer, instruction: Instruction) -> None:
    """Write two integers of 32 bits as narrow ones in a register, the second one in the lowest bits (``cvt.pack``).

    Raises:
        UnknownError: Its types are others.
    """
    last = instruction.parts[-3:]
    if last not in _PACKED or not instruction.has("sat"):
        raise UnknownError(f"opcode {instruction.opcode}")
    kind = next(part for part in last if part[1:] in ("8", "16"))
    a, b = (writer.value(x, "s32", array=True) for x in instruction.operands[1:3])
    rest = writer.value(instruction.operands[3], "u32", array=True) if kind[1:] == "8" else "0"
    text = f"integers.packed({a}, {b}, {rest}, {kind!r})"
    writer.put(instruction, instruction.operands[0], text, "b32")


def _limited(instruction: Instruction, value: str, target: str) -> str:
    """Return a number within the range that ``.sat``, ``.relu`` and ``.satfinite`` leave it, before it is rounded.

    Raises:
        UnknownError: PTX has no ``.satfinite`` for the types.
    """
    value = f"{chosen_limit(instruction)}({value})"
    if not instruction.has("satfinite"):
        return value
    if instruction.type != "f32":
        raise UnknownError(f"{instruction.opcode}: .satfinite from {instruction.type}")
    return f"floats.finite({value}, {target!r})"


def _to_float8(writer: Writer, instruction: Instruction, kind: str, origin: str) -> None:
    operands = instruction.operands[1:]
    if origin == "f32":
        high, low = (writer.value(x, "f32", array=True) for x in operands)
    elif origin in ("f16x2", "bf16x2"):
        both = writer.temporary(f"formats.halves({writer.value(operands[0], origin, array=True)})")
        base = origin.removesuffix("x2")
        low, high = (f"formats.{base}_to_f32({both}[{i}])" for i in (0, 1))
    else:
        raise UnknownError(f"cvt from {origin} to {kind}")
    limit = chosen_limit(instruction)
    text = f"formats.pair8({limit}({high}), {limit}({low}), {kind!r})"
    writer.put(instruction, instruction.operands[0], text, "b16")


def _from_float8(writer: Writer, instruction: Instruction, kind: str, target: str) -> None:
    if target != "f16x2":
        raise UnknownError(f"cvt from {kind} to {target}")
    codes = writer.temporary(writer.value(instruction.operands[1], "b16", array=True))
    limit = chosen_limit(instruction)  # every number of 8 bits is one of float16
    high, low = (
        f"formats.f32_to_f16({limit}(formats.float8_to_f32({part}, {kind!r})))"
        for part in (f"{codes} >> 8", f"{codes} & 255")
    )
    writer.put(instruction, instruction.operands[0], f"formats.pair({high}, {low})", "f16x2")


def _to_pair(writer: Writer, instruction: Instruction, base: str) -> None:
    """Write two float32 as two halves, the first one in the upper bits."""
    if instruction.type != "f32":
        raise UnknownError(f"cvt from {instruction.type} to {base}x2")
    rounding = chosen(instruction, "rn rz", "rn")
    words = [writer.value(x, "f32", array=True) for x in instruction.operands[1:]]
    limited = [_limited(instruction, word, base) for word in words]
    high, low = (f"formats.f32_to_{base}({word}, {rounding!r})" for word in limited)
    writer.put(instruction, instruction.operands[0], f"formats.pair({high}, {low})", "b32")


def _scalar(writer: Writer, instruction: Instruction, target: str, origin: str) -> None:
    to = instruction.operands[0]
    whole = chosen(instruction, "rni rzi rmi rpi")
    rounding = chosen(instruction, "rn rz", "rn")
    value = writer.value(instruction.operands[1], origin, array=True)
    if origin in ("f16", "bf16"):
        value, origin = f"formats.{origin}_to_f32({value})", "f32"
    limit = chosen_limit(instruction)
    if target in ("f16", "bf16"):
        wide = value if origin in _FLOATS else f"{value}.astype(np.float64)"
        if origin != "f32" and target == "bf16":  # rounded once: through a float32 rounded to odd
            wide = f"floats.f32_to_odd({wide}.astype(np.float64))"
        if whole:
            wide = f"floats.to_whole({wide}, {whole!r})"
        text = f"formats.f32_to_{target}({_limited(instruction, wide, target)}, {rounding!r})"
        writer.put(instruction, to, text, target)
        return
    number = value_type(target)
    if target in _FLOATS:
        if origin in _FLOATS and whole:
            value = f"floats.to_whole({value}, {whole!r})"
        if rounding == "rz" and origin != "f32":
            value = f"floats.toward_zero({value}, {number!r})"
        text = f"{limit}({value}.astype({numpy_name(number)}))"
    elif origin in _FLOATS:
        text = f"floats.to_integer({value}, {number!r}, {whole or 'rzi'!r})"
    elif instruction.has("sat"):
        text = f"integers.limited({value}, {number!r})"
    else:
        text = f"{value}.astype({numpy_name(number)})"
    writer.put(instruction, to, text, target)


OPCODES: dict[str, Opcode] = {
    "cvt": opcode(_convert, "rn rz rna rni rzi rmi rpi ftz sat relu satfinite pack"),
}
