"""Sums, products, quotients, extremes: of integers, floats, and pairs of 16-bit numbers.

Not modelled: ``.ftz`` (subnormal numbers are kept) and the errors of ``.approx``. Rounding other than to the nearest
is refused, but for ``fma`` of float32 (`expf` rounds down).
"""

from __future__ import annotations

from tests.emulator.codegen.opcode import Opcode, chosen, opcode
from tests.emulator.codegen.writer import UnknownError, Writer, numpy_name
from tests.emulator.ptx.syntax import Immediate, Instruction, Operand
from tests.emulator.ptx.types import is_type, value_type

HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def half(writer: Writer, instruction: Instruction, text: str, *, bits: bool = False) -> None:
    """Write arithmetic of 16-bit floats: computed in float32 and rounded, which is as if it were rounded once.

    Args:
        writer: The block.
        instruction: The instruction.
        text: The expression, with ``{0}``, ``{1}`` ... for float32 operands.
        bits: Whether it gives the bits of the result, not float32.
    """
    kind = instruction.type
    base = kind.removesuffix("x2")
    narrow = "{}" if bits else f"formats.f32_to_{base}({{}})"
    operands = instruction.operands[1:]
    words = [writer.value(operand, kind, array=True) for operand in operands]
    if kind == base:
        wide = [f"formats.{base}_to_f32({word})" for word in words]
        writer.put(instruction, instruction.operands[0], narrow.format(text.format(*wide)), kind)
        return
    pairs = [writer.temporary(f"formats.halves({word})") for word in words]
    low, high = (
        narrow.format(text.format(*(f"formats.{base}_to_f32({name}[{i}])" for name in pairs)))
        for i in (0, 1)
    )
    writer.put(instruction, instruction.operands[0], f"formats.pair({high}, {low})", kind)


def _shorts(writer: Writer, instruction: Instruction, text: str) -> None:
    """Write arithmetic of two 16-bit integers in a register.

    Raises:
        UnknownError: It is limited to their range.
    """
    if instruction.has("sat"):
        raise UnknownError(f"{instruction.opcode}: .sat of {instruction.type}")
    number = "np.int16" if instruction.type == "s16x2" else "np.uint16"
    words = [
        f"flat({writer.value(operand, 'b32', array=True)}).view({number})"
        for operand in instruction.operands[1:]
    ]
    result = f"flat({text.format(*words)}).view(np.uint32)"
    writer.put(instruction, instruction.operands[0], result, "b32")


def packed(writer: Writer, instruction: Instruction, text: str) -> None:
    """Write arithmetic of two float32 in a register.

    Raises:
        UnknownError: It has ``.sat`` or ``.relu``.
    """
    if chosen_limit(instruction):
        raise UnknownError(f"{instruction.opcode}: limits of {instruction.type}")
    words = [
        f"flat({writer.value(operand, 'b64', array=True)}).view(np.float32)"
        for operand in instruction.operands[1:]
    ]
    result = f"np.asarray({text.format(*words)}, np.float32).view(np.uint64)"
    writer.put(instruction, instruction.operands[0], result, "b64")


def _pair_of(writer: Writer, a: Operand, b: Operand, kind: str) -> tuple[str, str]:
    """Return two operands, of which one at least is an array."""
    both = isinstance(a, Immediate) and isinstance(b, Immediate)
    return writer.value(a, kind, array=both), writer.value(b, kind)


def _mixed(writer: Writer, instruction: Instruction, text: str) -> None:
    """Write arithmetic of 16-bit floats with a last operand and a result in float32 (``add.f32.f16``, PTX 8.6, sm_100)."""
    kind = instruction.type
    if instruction.parts[-2:] not in (("f32", "f16"), ("f32", "bf16")) or chosen(
        instruction, "rm rp rz"
    ):
        raise UnknownError(f"opcode {instruction.opcode}")
    target, *narrow, last = instruction.operands
    words = [f"formats.{kind}_to_f32({writer.value(x, kind, array=True)})" for x in narrow]
    text = text.format(*words, writer.value(last, "f32", array=True))
    writer.put(instruction, target, f"{chosen_limit(instruction)}({text})", "f32")


def _is_mixed(instruction: Instruction) -> bool:
    return sum(map(is_type, instruction.parts)) > 1


def binary(writer: Writer, instruction: Instruction, sign: str) -> None:
    """Write a sum, difference, product or quotient.

    Raises:
        UnknownError: It is rounded in a direction, and no sum or difference of float32.
    """
    kind = instruction.type
    if _is_mixed(instruction):
        _mixed(writer, instruction, f"{{0}} {sign} {{1}}")
        return
    rounding = chosen(instruction, "rm rp rz")
    if rounding and (kind != "f32" or sign not in "+-"):
        raise UnknownError(f"{instruction.opcode}: .{rounding} of {kind}")
    if kind in HALVES:
        text = f"{{0}} {sign} {{1}}"
        half(writer, instruction, f"floats.saturated({text})" if instruction.has("sat") else text)
    elif kind in ("u16x2", "s16x2"):
        _shorts(writer, instruction, f"{{0}} {sign} {{1}}")
    elif kind == "f32x2":
        packed(writer, instruction, f"{{0}} {sign} {{1}}")
    else:
        target, a, b = instruction.operands
        x, y = _pair_of(writer, a, b, kind)
        text = f"{x} {sign} {y}"
        if rounding:
            text = f"floats.fma_directed({y}, {sign}1.0, {x}, {rounding!r})"
        if instruction.has("sat"):
            text = _saturated(kind, x, y, sign, text)
        writer.put(instruction, target, text, kind)


def _saturated(kind: str, x: str, y: str, sign: str, text: str) -> str:
    if kind == "f32":
        return f"floats.saturated({text})"
    if kind == "s32" and sign in "+-":
        function = "add_saturated" if sign == "+" else "subtract_saturated"
        return f"integers.{function}({x}, {y})"
    raise UnknownError(f".sat of {kind}")


def _carry(writer: Writer, instruction: Instruction, first: str, second: str, sign: str) -> None:
    """Write a sum or difference with carry or borrow, in and out, as the opcode says."""
    if instruction.guard is not None or instruction.has("sat"):
        raise UnknownError("a carry under a guard, or with .sat")
    carried = instruction.name in ("addc", "subc", "madc")
    compare = "{0} < {1}" if sign == "+" else "{1} < {0}"
    total = writer.temporary(f"{first} {sign} {second}")
    out = compare.format(total, first)
    if carried:
        partial, total = total, writer.temporary(f"{total} {sign} cc")
        out = f"({out}) | ({compare.format(total, partial)})"
    if instruction.has("cc"):
        writer.emit(f"cc = {out}")
    writer.put(instruction, instruction.operands[0], total, f"u{instruction.type[1:]}")


def _add(writer: Writer, instruction: Instruction) -> None:
    if instruction.has("cc") or instruction.name == "addc":
        kind = f"u{instruction.type[1:]}"
        a, b = (writer.value(x, kind, array=True) for x in instruction.operands[1:])
        _carry(writer, instruction, a, b, "+")
    else:
        binary(writer, instruction, "+")


def _subtract(writer: Writer, instruction: Instruction) -> None:
    if instruction.has("cc") or instruction.name == "subc":
        kind = f"u{instruction.type[1:]}"
        a, b = (writer.value(x, kind, array=True) for x in instruction.operands[1:])
        _carry(writer, instruction, a, b, "-")
    else:
        binary(writer, instruction, "-")


def _product(writer: Writer, instruction: Instruction) -> tuple[str, str]:
    """Return the product of the first two operands of ``mul`` or ``mad``, and its type."""
    kind = instruction.type
    a, b = (writer.value(x, kind, array=True) for x in instruction.operands[1:3])
    if instruction.has("wide"):
        wide = numpy_name(value_type(_WIDE[kind]))
        return f"{a}.astype({wide}) * {b}.astype({wide})", _WIDE[kind]
    if instruction.has("hi"):
        return f"integers.multiply_high({a}, {b})", kind
    return f"{a} * {b}", kind


def _multiply(writer: Writer, instruction: Instruction) -> None:
    if instruction.has("wide") or instruction.has("hi"):
        if instruction.has("sat"):
            raise UnknownError(f"{instruction.opcode}: .sat")
        text, kind = _product(writer, instruction)
        writer.put(instruction, instruction.operands[0], text, kind)
    else:
        binary(writer, instruction, "*")


def _multiply_add(writer: Writer, instruction: Instruction) -> None:
    if instruction.type in ("f32", "f64"):
        fused(writer, instruction)
        return
    text, kind = _product(writer, instruction)
    if instruction.has("cc") or instruction.name == "madc":
        unsigned = f"u{kind[1:]}"
        name = writer.temporary(f"({text}).view({numpy_name(value_type(unsigned))})")
        addend = writer.value(instruction.operands[3], unsigned, array=True)
        _carry(writer, instruction, addend, name, "+")
        return
    addend = writer.value(instruction.operands[3], kind, array=instruction.has("sat"))
    if not instruction.has("sat"):
        total = f"{text} + {addend}"
    elif instruction.has("hi") and kind == "s32":
        total = f"integers.add_saturated({text}, {addend})"
    else:
        raise UnknownError(f"{instruction.opcode}: .sat")
    writer.put(instruction, instruction.operands[0], total, kind)


def fused(writer: Writer, instruction: Instruction) -> None:
    """Write a fused multiply-add."""
    kind = instruction.type
    if _is_mixed(instruction):
        _mixed(writer, instruction, "floats.fma({0}, {1}, {2})")
        return
    limit = chosen_limit(instruction)
    rounding = chosen(instruction, "rm rp rz")
    if rounding and kind != "f32":
        raise UnknownError(f"{instruction.opcode}: .{rounding} of {kind}")
    if kind in HALVES:
        base = kind.removesuffix("x2")
        text = f"floats.fma_{base}({{0}}, {{1}}, {{2}})"
        if limit:
            text = f"formats.f32_to_{base}({limit}(formats.{base}_to_f32({text})))"
        half(writer, instruction, text, bits=True)
    elif kind == "f32x2":
        packed(writer, instruction, "floats.fma({0}, {1}, {2})")
    else:
        a, b, c = (writer.value(x, kind, array=True) for x in instruction.operands[1:4])
        text = f"floats.{'fma' if kind == 'f32' else 'fma_f64'}({a}, {b}, {c})"
        if rounding:
            text = f"floats.fma_directed({a}, {b}, {c}, {rounding!r})"
        writer.put(instruction, instruction.operands[0], f"{limit}({text})", kind)


def chosen_limit(instruction: Instruction) -> str:
    """Return the function of ``.sat`` or ``.relu``, or nothing."""
    if instruction.has("sat"):
        return "floats.saturated"
    return "floats.relu" if instruction.has("relu") else ""


def _divide(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    if kind in ("f32", "f64"):
        binary(writer, instruction, "/")
        return
    a, b = (writer.value(x, kind, array=True) for x in instruction.operands[1:])
    writer.put(instruction, instruction.operands[0], f"integers.divide({a}, {b})", kind)


def _remainder(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    a, b = (writer.value(x, kind, array=True) for x in instruction.operands[1:])
    writer.put(instruction, instruction.operands[0], f"integers.remainder({a}, {b})", kind)


def _extreme(writer: Writer, instruction: Instruction) -> None:
    kind, name = instruction.type, f"{instruction.name}imum"
    function = f"np.{name}" if kind[0] in "us" else f"floats.{name}"
    nan = ", nan=True" if instruction.has("NaN") else ""
    limit = chosen_limit(instruction)
    if kind in HALVES:
        half(writer, instruction, f"{limit}({function}({{0}}, {{1}}{nan}))")
    elif kind in ("u16x2", "s16x2"):
        _shorts(writer, instruction, f"{limit}({function}({{0}}, {{1}}))")
    else:
        text = writer.value(instruction.operands[1], kind, array=True)
        for other in instruction.operands[2:]:
            text = f"{function}({text}, {writer.value(other, kind)}{nan})"
        writer.put(instruction, instruction.operands[0], f"{limit}({text})", kind)


def unary(writer: Writer, instruction: Instruction, text: str) -> None:
    """Write a function of one operand, ``{0}`` in the text."""
    kind = instruction.type
    if kind in HALVES:
        half(writer, instruction, text)
        return
    value = text.format(writer.value(instruction.operands[1], kind, array=True))
    result = f"({value}).astype({numpy_name(value_type(kind))})"
    writer.put(instruction, instruction.operands[0], result, kind)


def _absolute(writer: Writer, instruction: Instruction) -> None:
    unary(writer, instruction, "np.abs({0})")


def _negate(writer: Writer, instruction: Instruction) -> None:
    unary(writer, instruction, "-{0}")


def _sum_of_differences(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    words = ", ".join(writer.value(x, kind, array=True) for x in instruction.operands[1:])
    writer.put(instruction, instruction.operands[0], f"integers.sad({words})", kind)


def _dot4(writer: Writer, instruction: Instruction) -> None:
    kinds = instruction.parts[-2:]
    target, a, b, c = instruction.operands
    x, y = writer.value(a, "b32", array=True), writer.value(b, "b32")
    z = writer.value(c, "s32" if "s32" in kinds else "u32")
    signs = f"signed_a={kinds[0] == 's32'}, signed_b={kinds[1] == 's32'}"
    writer.put(instruction, target, f"integers.dot4({x}, {y}, {z}, {signs})", "u32")


_SUM = "rn ftz sat"
_EXTREME = "ftz relu NaN"

OPCODES: dict[str, Opcode] = {
    "add": opcode(_add, f"{_SUM} rm rp rz cc", types=2),
    "addc": opcode(_add, "cc", types=1),
    "sub": opcode(_subtract, f"{_SUM} rm rp rz cc", types=2),
    "subc": opcode(_subtract, "cc", types=1),
    "mul": opcode(_multiply, f"{_SUM} lo hi wide", types=1),
    "mad": opcode(_multiply_add, f"{_SUM} rm rp rz lo hi wide cc", types=1),
    "madc": opcode(_multiply_add, "lo hi cc", types=1),
    "fma": opcode(fused, f"{_SUM} relu rm rp rz", types=2),
    "div": opcode(_divide, "rn ftz approx full", types=1),
    "rem": opcode(_remainder, types=1),
    "min": opcode(_extreme, _EXTREME, types=1),
    "max": opcode(_extreme, _EXTREME, types=1),
    "abs": opcode(_absolute, "ftz", types=1),
    "neg": opcode(_negate, "ftz", types=1),
    "sad": opcode(_sum_of_differences, types=1),
    "dp4a": opcode(_dot4, types=2),
}
