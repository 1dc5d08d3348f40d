"""Asynchronous copies and the barriers that tell their end: ``cp.async``, TMA, ``mbarrier``, ``tensormap``."""

from __future__ import annotations

from tests.emulator.codegen.opcode import (
    CACHING,
    ORDER,
    SPACES,
    Opcode,
    chosen,
    opcode,
    space_of,
)
from tests.emulator.codegen.writer import UnknownError, Writer
from tests.emulator.ptx.syntax import SINK, Address, Immediate, Instruction, Operand, Register

_REDUCTIONS = "add min max inc dec and or xor"


def _copy(writer: Writer, instruction: Instruction) -> None:
    guard = writer.guard(instruction)
    if instruction.has("bulk"):
        _bulk(writer, instruction)
    elif instruction.has("commit_group"):
        writer.emit(f"w.copies.commit(g, {guard})")
    elif instruction.has("wait_group"):
        writer.emit(f"w.copies.wait(g, {_allowed(instruction)}, {guard})")
    elif instruction.has("wait_all"):  # "equivalent to" these two (PTX ISA)
        writer.emit(f"w.copies.commit(g, {guard})")
        writer.emit(f"w.copies.wait(g, 0, {guard})")
    elif instruction.has("mbarrier"):
        address = writer.address(instruction.operands[0], "u32")
        counted = not instruction.has("noinc")
        writer.emit(
            f"asynchronous.arrive_behind_copies(w, g, {address}, {guard}, counted={counted})"
        )
    else:
        _copy_async(writer, instruction)


def _allowed(instruction: Instruction) -> int:
    """Return how many groups a wait leaves pending."""
    (allowed,) = instruction.operands
    assert isinstance(allowed, Immediate)
    return int(allowed.value)


def _copy_async(writer: Writer, instruction: Instruction) -> None:
    target, source, size, *rest = instruction.operands
    assert isinstance(size, Immediate)
    operands, ignored = "None", "None"
    if rest and isinstance(rest[0], Register) and rest[0].type == "pred":
        ignored = writer.value(rest[0], "pred")
    elif rest and not _is_policy(rest[0]):
        operands = writer.value(rest[0], "u32", array=True)
    to, origin = writer.address(target, "u32"), writer.address(source)
    writer.emit(
        f"w.copy_async({to}, {origin}, {int(size.value)}, {operands}, {ignored}, "
        f"{writer.guard(instruction)}, g)"
    )


def _is_policy(operand: Operand) -> bool:
    return isinstance(operand, Register) and operand.type in ("b64", "u64")


def _bulk(writer: Writer, instruction: Instruction) -> None:
    guard = writer.guard(instruction)
    if instruction.has("commit_group"):
        writer.emit(f"w.stores.commit(g, {guard})")
    elif instruction.has("wait_group"):
        writer.emit(f"w.stores.wait(g, {_allowed(instruction)}, {guard})")
    elif instruction.has("prefetch"):
        return
    elif instruction.has("tensor"):
        _tensor(writer, instruction)
    elif instruction.has("bulk_group"):
        target, source, size = instruction.operands[:3]
        reduction = chosen(instruction, _REDUCTIONS)
        writer.emit(
            f"tma.store_bytes(w, g, {writer.address(target)}, {writer.address(source, 'u32')}, "
            f"{writer.value(size, 'u32', array=True)}, {reduction!r}, {instruction.type!r}, {guard})"
        )
    else:
        _load_bytes(writer, instruction)


def _load_bytes(writer: Writer, instruction: Instruction) -> None:
    target, source, size, mbarrier, *rest = instruction.operands
    origin = [part for part in instruction.parts if part in SPACES]
    if origin[-1] != "global":
        raise UnknownError(f"{instruction.opcode}: from shared to shared memory")
    writer.emit(
        f"tma.load_bytes(w, g, {writer.address(target, 'u32')}, {writer.address(source)}, "
        f"{writer.value(size, 'u32', array=True)}, {writer.address(mbarrier, 'u32')}, "
        f"{_mask(writer, instruction, rest)}, {writer.guard(instruction)})"
    )


def _mask(writer: Writer, instruction: Instruction, rest: list[Operand]) -> str:
    """Return the blocks of a multicast; the operand may be followed by a cache policy."""
    if not instruction.has("multicast::cluster"):
        return "None"
    return writer.value(rest[0], "u16", array=True)


def _position(writer: Writer, operand: Operand) -> str:
    if not isinstance(operand, Address) or len(operand.coordinates) != 1:
        raise UnknownError("a tensor without coordinates, or with im2col offsets")
    return writer.tuple_of(operand.coordinates[0], "s32")


def _tensor(writer: Writer, instruction: Instruction) -> None:
    guard = writer.guard(instruction)
    if instruction.has("bulk_group"):
        where, source = instruction.operands[:2]
        reduction = chosen(instruction, _REDUCTIONS)
        writer.emit(
            f"tma.store_tensor(w, g, {writer.address(where)}, {_position(writer, where)}, "
            f"{writer.address(source, 'u32')}, {reduction!r}, {guard})"
        )
        return
    target, where, mbarrier, *rest = instruction.operands
    writer.emit(
        f"tma.load_tensor(w, g, {writer.address(target, 'u32')}, {writer.address(where)}, "
        f"{_position(writer, where)}, {writer.address(mbarrier, 'u32')}, "
        f"{_mask(writer, instruction, rest)}, {guard}, pair={instruction.has('cta_group::2')})"
    )


def _mbarrier(writer: Writer, instruction: Instruction) -> None:
    what, guard = instruction.parts[1], writer.guard(instruction)
    operands = instruction.operands
    if what in ("arrive", "arrive_drop"):
        _arrive(writer, instruction)
    elif what in ("try_wait", "test_wait"):
        target, where, state = operands[:3]
        parity, relaxed = instruction.has("parity"), instruction.has("relaxed")
        value = writer.value(state, "u32" if parity else "u64", array=True)
        address = writer.address(where, "u32")
        text = (
            f"w.mbarriers.try_wait({address}, {value}, {guard}, g, parity={parity}, "
            f"relaxed={relaxed})"
        )
        writer.put(instruction, target, text, "pred")
    elif what == "inval":
        writer.emit(f"w.mbarriers.invalidate({writer.address(operands[0], 'u32')}, {guard}, g)")
    elif what in ("init", "expect_tx", "complete_tx"):
        method = {"init": "initialise", "expect_tx": "expect"}.get(what, what)
        address = writer.address(operands[0], "u32")
        count = writer.value(operands[1], "u32", array=True)
        writer.emit(f"w.mbarriers.{method}({address}, {count}, {guard}, g)")
    else:
        raise UnknownError(f"mbarrier.{what}")


def _arrive(writer: Writer, instruction: Instruction) -> None:
    operands = list(instruction.operands)
    target = SINK if isinstance(operands[0], Address) else operands.pop(0)
    address = writer.temporary(writer.address(operands[0], "u32"))
    guard, count = writer.guard(instruction), "1"
    if instruction.has("expect_tx"):
        expected = writer.value(operands[1], "u32", array=True)
        writer.emit(f"w.mbarriers.expect({address}, {expected}, {guard}, g)")
    elif len(operands) > 1:
        count = writer.value(operands[1], "u32", array=True)
    drop, relaxed = instruction.parts[1] == "arrive_drop", instruction.has("relaxed")
    state = writer.temporary(
        f"w.mbarriers.arrive({address}, {count}, {guard}, g, drop={drop}, relaxed={relaxed})"
    )
    writer.put(instruction, target, state, "b64")


def _tensor_map(writer: Writer, instruction: Instruction) -> None:
    where, *rest = instruction.operands
    if instruction.has("cp_fenceproxy"):
        source, size = rest
        assert isinstance(size, Immediate)
        writer.emit(
            f"tma.copy_map(w, g, {writer.address(where)}, {writer.address(source, 'u32')}, "
            f"{int(size.value)}, {writer.guard(instruction)})"
        )
        return
    name = chosen(instruction, _FIELDS)
    index = 0
    if len(rest) == 2:
        assert isinstance(rest[0], Immediate)
        index = int(rest[0].value)
    value = writer.value(rest[-1], "u64" if instruction.type == "b64" else "u32", array=True)
    space = space_of(instruction)
    address = writer.address(where, "u32" if space == "shared" else "u64")
    writer.emit(
        f"tma.replace_field(w, g, {space!r}, {address}, {name!r}, {index}, {value}, "
        f"{writer.guard(instruction)})"
    )


_FIELDS = (
    "global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout "
    "swizzle_mode fill_mode"
)

OPCODES: dict[str, Opcode] = {
    "cp": opcode(
        _copy,
        "async bulk reduce tensor 1d 2d 3d 4d 5d tile bulk_group commit_group wait_group wait_all read prefetch "
        f"mbarrier arrive noinc mbarrier::complete_tx::bytes multicast::cluster L2 noftz {_REDUCTIONS} "
        "cta_group::1 cta_group::2",
        SPACES,
        CACHING,
    ),
    "mbarrier": opcode(
        _mbarrier,
        "init inval expect_tx complete_tx arrive arrive_drop try_wait test_wait parity noComplete",
        SPACES,
        ORDER,
    ),
    "tensormap": opcode(
        _tensor_map,
        f"replace tile cp_fenceproxy tensormap::generic b1024 sync aligned {_FIELDS}",
        SPACES,
        ORDER,
    ),
}
