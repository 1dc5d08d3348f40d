"""Functions of one float: reciprocals, roots, powers, and questions about it. Computed in its own precision."""

from __future__ import annotations

from tests.emulator.codegen.arithmetic import unary
from tests.emulator.codegen.opcode import Opcode, Write, opcode
from tests.emulator.codegen.writer import Writer
from tests.emulator.ptx.syntax import Instruction


def _function(text: str) -> Write:
    """Return who writes a function whose operand is ``{0}``."""

    def write(writer: Writer, instruction: Instruction) -> None:
        unary(writer, instruction, text)

    return write


def _copy_sign(writer: Writer, instruction: Instruction) -> None:
    kind = instruction.type
    target, sign, size = instruction.operands
    x, y = writer.value(size, kind, array=True), writer.value(sign, kind)
    writer.put(instruction, target, f"np.copysign({x}, {y})", kind)


_TESTS = {
    "finite": "np.isfinite({0})",
    "infinite": "np.isinf({0})",
    "number": "~np.isnan({0})",
    "notanumber": "np.isnan({0})",
    "normal": "np.isfinite({0}) & (np.abs({0}) >= np.finfo({0}.dtype).tiny)",
    "subnormal": "({0} != 0) & (np.abs({0}) < np.finfo({0}.dtype).tiny)",
}


def _test(writer: Writer, instruction: Instruction) -> None:
    value = writer.value(instruction.operands[1], instruction.type, array=True)
    text = _TESTS[instruction.parts[1]].format(value)
    writer.put(instruction, instruction.operands[0], text, "pred")


_WORDS = "rn ftz approx"

OPCODES: dict[str, Opcode] = {
    "rcp": opcode(_function("1 / {0}"), _WORDS),
    "sqrt": opcode(_function("np.sqrt({0})"), _WORDS),
    "rsqrt": opcode(_function("1 / np.sqrt({0})"), _WORDS),
    "ex2": opcode(_function("np.exp2({0})"), _WORDS),
    "lg2": opcode(_function("np.log2({0})"), _WORDS),
    "sin": opcode(_function("np.sin({0})"), _WORDS),
    "cos": opcode(_function("np.cos({0})"), _WORDS),
    "tanh": opcode(_function("np.tanh({0})"), _WORDS),
    "copysign": opcode(_copy_sign),
    "testp": opcode(_test, " ".join(_TESTS)),
}
