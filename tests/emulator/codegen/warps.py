"""Instructions of whole warps: exchanges, votes, matrices."""

from __future__ import annotations

from tests.emulator.codegen.opcode import SPACES, Opcode, chosen, opcode, words
from tests.emulator.codegen.writer import UnknownError, Writer
from tests.emulator.ptx.syntax import Immediate, Instruction, Register, Vector

_TYPES = "f16 bf16 tf32 f32 f64 s8 u8 s4 u4 s32 e4m3 e5m2"
_ELEMENTS = words(_TYPES)


_MASK = {"shfl": 4, "vote": 2, "match": 2, "redux": 2, "elect": 1, "bar": 0}
"""Place of the membermask among the operands of what has ``.sync``."""
_ALL_LANES = 0xFFFFFFFF


def check_lanes(writer: Writer, instruction: Instruction) -> None:
    """Write the check that all lanes run an instruction that have to: those of its membermask, or whole warps if it is aligned."""
    place = _MASK.get(instruction.name)
    if place is None or not instruction.has("sync"):
        if instruction.has("aligned"):
            writer.emit(f"warp.check_members(None, w.lanes.alive, g, {writer.guard(instruction)})")
        return
    mask = instruction.operands[place]
    is_full = isinstance(mask, Immediate) and int(mask.value) & _ALL_LANES == _ALL_LANES
    text = "None" if is_full else writer.value(mask, "b32", array=True)
    writer.emit(f"warp.check_members({text}, w.lanes.alive, g, {writer.guard(instruction)})")


def _bar_warp(writer: Writer, instruction: Instruction) -> None:
    """Write nothing: lanes of a warp are in order, and `check_lanes` sees that they are here."""


def _shuffle(writer: Writer, instruction: Instruction) -> None:
    operands = ", ".join(writer.value(x, "b32", array=True) for x in instruction.operands[1:4])
    result = writer.temporary(f"warp.shuffle({instruction.parts[2]!r}, {operands}, g)")
    writer.put(instruction, instruction.operands[0], f"{result}[0]", "b32")
    writer.put(instruction, instruction.pair, f"{result}[1]", "pred")


def _vote(writer: Writer, instruction: Instruction) -> None:
    target, predicate = instruction.operands[:2]
    value, guard = writer.value(predicate, "pred", array=True), writer.guard(instruction)
    text = f"warp.vote({instruction.parts[2]!r}, {value}, g, {guard})"
    writer.put(instruction, target, text, "b32" if instruction.type == "b32" else "pred")


def _active_mask(writer: Writer, instruction: Instruction) -> None:
    text = "warp.vote('ballot', np.ones(n, bool), g)"
    writer.put(instruction, instruction.operands[0], text, "b32")


def _match(writer: Writer, instruction: Instruction) -> None:
    value = writer.value(instruction.operands[1], instruction.type, array=True)
    result = writer.temporary(
        f"warp.match({instruction.parts[1]!r}, {value}, g, {writer.guard(instruction)})"
    )
    writer.put(instruction, instruction.operands[0], f"{result}[0]", "b32")
    writer.put(instruction, instruction.pair, f"{result}[1]", "pred")


def _reduce(writer: Writer, instruction: Instruction) -> None:
    kind = "u32" if instruction.type == "b32" else instruction.type
    if kind == "f32" and instruction.parts[2] not in ("min", "max"):
        raise UnknownError(f"{instruction.opcode}: of float32 there are min and max")
    value = writer.value(instruction.operands[1], kind, array=True)
    text = f"warp.reduce({instruction.parts[2]!r}, {value}, g, {writer.guard(instruction)})"
    writer.put(instruction, instruction.operands[0], text, kind)


def _elect(writer: Writer, instruction: Instruction) -> None:
    result = writer.temporary(f"warp.elect(g, {writer.guard(instruction)})")
    writer.put(instruction, instruction.operands[0], f"{result}[0]", "b32")
    writer.put(instruction, instruction.pair, f"{result}[1]", "pred")


def _matrices(instruction: Instruction) -> int:
    if not instruction.has("m8n8"):
        raise UnknownError(f"{instruction.opcode}: only matrices of 8 x 8 elements of 16 bits")
    return int(chosen(instruction, "x1 x2 x4")[1:])


def _load_matrices(writer: Writer, instruction: Instruction) -> None:
    target, where = instruction.operands
    count, address = _matrices(instruction), writer.address(where, "u32")
    if instruction.guard is not None:
        raise UnknownError("ldmatrix under a guard")
    result = writer.temporary(
        f"mma.load_matrices(w, g, {address}, {count}, transposed={instruction.has('trans')})"
    )
    writer.put_all(instruction, target, result, "b32")


def _store_matrices(writer: Writer, instruction: Instruction) -> None:
    where, values = instruction.operands
    _matrices(instruction)
    if instruction.guard is not None:
        raise UnknownError("stmatrix under a guard")
    address, items = writer.address(where, "u32"), writer.tuple_of(values)
    writer.emit(
        f"mma.store_matrices(w, g, {address}, {items}, transposed={instruction.has('trans')})"
    )


def _move_matrix(writer: Writer, instruction: Instruction) -> None:
    value = writer.value(instruction.operands[1], "b32", array=True)
    writer.put(instruction, instruction.operands[0], f"mma.move_matrix(g, {value})", "b32")


def _shape(instruction: Instruction) -> str:
    return next(part for part in instruction.parts if part[0] == "m" and part[1:2].isdigit())


def _multiply(writer: Writer, instruction: Instruction) -> None:
    types = [part for part in instruction.parts if part in _ELEMENTS]
    if len(types) != 4 or len(instruction.operands) != 4 or instruction.has("sp"):
        raise UnknownError(f"{instruction.opcode}: sparse, or with scales")
    a, b, c = (writer.tuple_of(operand) for operand in instruction.operands[1:])
    saturate = instruction.has("satfinite")
    result = writer.temporary(
        f"mma.mma(w, g, {_shape(instruction)!r}, {types!r}, {a}, {b}, {c}, saturate={saturate})"
    )
    writer.put_all(instruction, instruction.operands[0], result, "b32")


def _wgmma(writer: Writer, instruction: Instruction) -> None:
    what = instruction.parts[1]
    if what == "wait_group":
        (allowed,) = instruction.operands
        assert isinstance(allowed, Immediate)
        writer.emit(f"w.products.wait(g, {int(allowed.value)})")
    elif what == "commit_group":
        writer.emit("w.products.commit(g)")
    elif what == "mma_async":
        _wgmma_product(writer, instruction)
    elif what == "fence":
        writer.emit("w.products.fence(g)")
    else:
        raise UnknownError(f"wgmma.{what}")


def _wgmma_product(writer: Writer, instruction: Instruction) -> None:
    types = tuple(part for part in instruction.parts if part in _ELEMENTS)
    target, a, b, *rest = instruction.operands
    if len(types) != 3 or instruction.has("sp") or not isinstance(target, Vector):
        raise UnknownError(f"{instruction.opcode}: sparse, or of other types")
    keep = writer.value(rest[0], "pred", array=True) if rest else "np.ones(n, bool)"
    flags: list[int] = []
    for flag in rest[1:]:
        assert isinstance(flag, Immediate)
        flags.append(int(flag.value))
    # imm-scale-a, imm-scale-b, then imm-trans-a (unless A is in registers) and imm-trans-b.
    scales, turns = flags[:2], flags[2:]
    in_registers = isinstance(a, Vector)
    turned_a = bool(turns[0]) if turns and not in_registers else False
    turned_b = bool(turns[-1]) if turns else False
    negated = len(scales) == 2 and scales[0] * scales[1] < 0
    product = (
        f"wgmma.Product({_shape(instruction)!r}, {types!r}, {negated}, {turned_a}, {turned_b}, "
        f"{instruction.has('satfinite')})"
    )
    accumulators = writer.tuple_of(target)
    left = writer.tuple_of(a) if in_registers else writer.value(a, "u64", array=True)
    right = writer.value(b, "u64", array=True)
    result = writer.temporary(
        f"wgmma.multiply(w, g, {product}, {accumulators}, {left}, {right}, {keep})"
    )
    assert all(isinstance(item, Register) for item in target.items)
    writer.put_all(instruction, target, result, "b32")


_MMA_SHAPES = " ".join(f"m16n8k{k}" for k in (4, 8, 16, 32, 64))
_WGMMA_SHAPES = " ".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32))
_MATRIX = "sync aligned m8n8 trans x1 x2 x4"

OPCODES: dict[str, Opcode] = {
    "shfl": opcode(_shuffle, "sync up down bfly idx", together=True),
    "vote": opcode(_vote, "sync all any uni ballot", together=True),
    "activemask": opcode(_active_mask, together=True),
    "match": opcode(_match, "any all sync", together=True),
    "redux": opcode(_reduce, "sync add min max and or xor", together=True),
    "elect": opcode(_elect, "sync", together=True),
    "bar": opcode(_bar_warp, "warp sync", together=True),
    "ldmatrix": opcode(_load_matrices, _MATRIX, SPACES, together=True),
    "stmatrix": opcode(_store_matrices, _MATRIX, SPACES, together=True),
    "movmatrix": opcode(_move_matrix, _MATRIX, together=True),
    "mma": opcode(
        _multiply, f"sync aligned row col satfinite {_TYPES} {_MMA_SHAPES}", together=True
    ),
    "wgmma": opcode(
        _wgmma,
        f"mma_async fence commit_group wait_group sync aligned satfinite {_TYPES} {_WGMMA_SHAPES}",
        together=True,
    ),
}
