"""Values and addresses on their way: ``mov``, ``ld``, ``st``, atomics, address spaces."""

from __future__ import annotations

from tests.emulator.codegen.opcode import (
    CACHING,
    ORDER,
    SPACES,
    Opcode,
    opcode,
    space_of,
    vector_length,
)
from tests.emulator.codegen.writer import UnknownError, Writer, numpy_name
from tests.emulator.ptx.syntax import (
    SINK,
    Address,
    Instruction,
    Operand,
    Register,
    Symbol,
    Vector,
)
from tests.emulator.ptx.types import BYTES, ITEM, register_type, unsigned, value_type
from tests.emulator.races.global_memory import order_of

_ATOMIC = "add min max and or xor exch cas inc dec"


def _move(writer: Writer, instruction: Instruction) -> None:
    target, source = instruction.operands
    kind = instruction.type
    if isinstance(target, Vector):
        count = len(target.items)
        width = BYTES[kind] // count
        whole = f"flat({writer.value(source, kind, array=True)})"
        parts = writer.temporary(
            f"{whole}.view({numpy_name(unsigned(width))}).reshape(-1, {count})"
        )
        for place, item in enumerate(target.items):
            writer.put(instruction, item, f"{parts}[:, {place}].copy()", f"b{8 * width}")
    elif isinstance(source, Vector):
        width = BYTES[kind] // len(source.items)
        parts = writer.tuple_of(source, f"b{8 * width}")
        number = numpy_name(value_type(kind))
        writer.put(instruction, target, f"np.stack({parts}, 1).view({number}).reshape(-1)", kind)
    elif isinstance(source, Register):
        # A view of a register's array would change with it.
        writer.put(instruction, target, f"{writer.value(source, kind)}.copy()", kind)
    else:
        writer.put(instruction, target, writer.value(source, kind, array=True), kind)


def _convert_address(writer: Writer, instruction: Instruction) -> None:
    target, source = instruction.operands
    if not isinstance(target, Register):
        raise UnknownError("cvta to no register")
    space = space_of(instruction)
    narrow = isinstance(source, Register) and ITEM[register_type(source.type)] == 4
    value = writer.value(source, "u32" if narrow else "u64", array=True)
    value = f"{value}.astype(np.uint64)"
    windows = {"shared": "memory.SHARED_WINDOW", "local": "memory.LOCAL_WINDOW"}
    if space not in windows:
        writer.put(instruction, target, value, "u64")
    elif not instruction.has("to"):
        writer.put(instruction, target, f"({value} + {windows[space]})", "u64")
    else:
        inside = f"({value} - {windows[space]})"
        if BYTES[target.type] == 4:
            writer.put(instruction, target, f"{inside}.astype(np.uint32)", "u32")
        else:
            writer.put(instruction, target, inside, "u64")


def _address_kind(space: str) -> str:
    return "u32" if space == "shared" else "u64"


def _space(writer: Writer, instruction: Instruction, address: Operand) -> str:
    """Return the space of an access; parameters of a call are in local memory here."""
    space = space_of(instruction)
    if isinstance(address, Address) and isinstance(address.base, Symbol) and space == "param":
        return writer.place_of(address.base)[0]
    return "global" if space == "const" else space


def _load(writer: Writer, instruction: Instruction) -> None:
    target, where = instruction.operands[:2]
    kind, count = instruction.type, vector_length(instruction)
    space, number = _space(writer, instruction, where), value_type(kind)
    if space == "param" and isinstance(where, Address) and isinstance(where.base, Symbol):
        offset = writer.place_of(where.base)[1] + where.base.offset + where.offset
        text = f"w.memory.parameter({offset}, {number!r}, {count}, n)"
    else:
        address = writer.address(where, _address_kind(space))
        guard = writer.guard(instruction)
        order = order_of(instruction)
        text = f"w.memory.load({space!r}, {address}, {number!r}, {count}, {guard}, g, {order!r})"
    if count == 1:
        items = target.items if isinstance(target, Vector) else (target,)
        writer.put(instruction, items[0], text, kind)
        return
    whole = writer.temporary(text)
    items = target.items if isinstance(target, Vector) else (target,)
    for place, item in enumerate(items):
        writer.put(instruction, item, f"{whole}[:, {place}].copy()", kind)


def _store(writer: Writer, instruction: Instruction) -> None:
    where, values = instruction.operands[:2]
    space = _space(writer, instruction, where)
    words = writer.tuple_of(values, instruction.type)
    address = writer.address(where, _address_kind(space))
    number = value_type(instruction.type)
    guard = writer.guard(instruction)
    order = order_of(instruction)
    writer.emit(f"w.store({space!r}, {address}, {words}, {number!r}, {guard}, g, {order!r})")


def _atomic(writer: Writer, instruction: Instruction) -> None:
    if instruction.has("async"):
        _atomic_async(writer, instruction)
        return
    returns = instruction.name == "atom"
    target = instruction.operands[0] if returns else SINK
    where, *rest = instruction.operands[1:] if returns else instruction.operands
    kind, count = instruction.type, vector_length(instruction)
    # A cache policy may follow the operands.
    used = rest[: 2 if instruction.has("cas") else 1]
    values = ", ".join(writer.tuple_of(operand, kind) for operand in used)
    space = space_of(instruction)
    address, guard = writer.address(where, _address_kind(space)), writer.guard(instruction)
    result = writer.temporary(
        f"w.atomic({_operation(instruction)!r}, {space!r}, {address}, [{values}], {kind!r}, {guard}, g, "
        f"{order_of(instruction)!r})"
    )
    if target == SINK:
        return
    items = target.items if isinstance(target, Vector) else (target,)
    if len(items) != count:
        raise UnknownError(f"{len(items)} results of {count} elements")
    for place, item in enumerate(items):
        writer.put(instruction, item, f"{result}[{place}]", kind)


def _operation(instruction: Instruction) -> str:
    return next(part for part in instruction.parts if part in _ATOMIC.split())


def _atomic_async(writer: Writer, instruction: Instruction) -> None:
    where, value, mbarrier = instruction.operands[:3]
    words, kind = writer.tuple_of(value, instruction.type), instruction.type
    writer.emit(
        f"asynchronous.combine(w, g, {_operation(instruction)!r}, {writer.address(where, 'u32')}, {words}, "
        f"{kind!r}, {BYTES[kind]}, {writer.address(mbarrier, 'u32')}, {writer.guard(instruction)})"
    )


def _store_async(writer: Writer, instruction: Instruction) -> None:
    where, values, mbarrier = instruction.operands[:3]
    words, kind = writer.tuple_of(values, instruction.type), value_type(instruction.type)
    writer.emit(
        f"asynchronous.store(w, g, {writer.address(where, 'u32')}, {words}, {kind!r}, "
        f"{writer.address(mbarrier, 'u32')}, {writer.guard(instruction)})"
    )


def _any_store(writer: Writer, instruction: Instruction) -> None:
    if instruction.has("async"):
        _store_async(writer, instruction)
    else:
        _store(writer, instruction)


def _map_address(writer: Writer, instruction: Instruction) -> None:
    target, address, rank = instruction.operands
    kind = instruction.type
    text = (
        f"w.memory.peer({writer.value(address, kind, array=True)}, {writer.value(rank, 'u32')}, g)"
    )
    writer.put(instruction, target, text, kind)


def _rank_of(writer: Writer, instruction: Instruction) -> None:
    address = writer.value(instruction.operands[1], instruction.type, array=True)
    writer.put(instruction, instruction.operands[0], f"w.memory.rank_of({address})", "u32")


def _is_in_space(writer: Writer, instruction: Instruction) -> None:
    address = writer.value(instruction.operands[1], "u64", array=True)
    text = f"memory.is_in_space({instruction.parts[1]!r}, {address})"
    writer.put(instruction, instruction.operands[0], text, "pred")


OPCODES: dict[str, Opcode] = {
    "mov": opcode(_move),
    "cvta": opcode(_convert_address, "to", SPACES),
    "ld": opcode(_load, "v2 v4 v8 unified", SPACES, ORDER, CACHING),
    "ldu": opcode(_load, "v2 v4", SPACES),
    "st": opcode(_any_store, "v2 v4 v8 async mbarrier::complete_tx::bytes", SPACES, ORDER, CACHING),
    "atom": opcode(_atomic, f"{_ATOMIC} noftz v2 v4 v8", SPACES, ORDER, CACHING),
    "red": opcode(
        _atomic,
        f"{_ATOMIC} noftz v2 v4 v8 async mbarrier::complete_tx::bytes",
        SPACES,
        ORDER,
        CACHING,
    ),
    "mapa": opcode(_map_address, "", SPACES),
    "getctarank": opcode(_rank_of, "", SPACES),
    "isspacep": opcode(_is_in_space, "", SPACES),
}
