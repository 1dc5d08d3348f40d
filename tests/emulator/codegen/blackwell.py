"""What sm_100 adds: ``tcgen05`` and ``clusterlaunchcontrol``."""

from __future__ import annotations

from tests.emulator.codegen.opcode import SPACES, Opcode, opcode, space_of
from tests.emulator.codegen.writer import UnknownError, Writer
from tests.emulator.ptx.syntax import Address, Immediate, Instruction, Vector
from tests.emulator.tensor.tensor_memory import SHAPES, registers_of

_WAITS = ("wait::ld", "wait::st")
_FENCES = (
    "relinquish_alloc_permit",
    "fence::before_thread_sync",
    "fence::after_thread_sync",
)
"""What changes nothing here, since all is done when it is issued."""


def _tcgen05(writer: Writer, instruction: Instruction) -> None:
    what, guard = instruction.parts[1], writer.guard(instruction)
    operands = list(instruction.operands)
    if what in _FENCES:
        return
    if what in _WAITS:
        writer.emit(f"tensor_memory.wait(w, g, {what[6:]!r}, {guard})")
        return
    if what in ("alloc", "dealloc"):
        count = writer.value(operands[1], "u32", array=True)
        if what == "alloc":
            space = space_of(instruction)
            address = writer.address(operands[0], "u32" if space == "shared" else "u64")
            pair = instruction.has("cta_group::2")
            writer.emit(
                f"tensor_memory.allocate(w, g, {space!r}, {address}, {count}, {guard}, pair={pair})"
            )
        else:
            address = writer.value(operands[0], "u32", array=True)
            writer.emit(f"tensor_memory.release(w, g, {address}, {count}, {guard})")
    elif what == "commit":
        mask = writer.value(operands[1], "u16", array=True) if len(operands) > 1 else "None"
        writer.emit(f"tcgen05.commit(w, g, {writer.address(operands[0], 'u32')}, {mask}, {guard})")
    elif what == "mma":
        _product(writer, instruction)
    elif what in ("ld", "st"):
        _transfer(writer, instruction)
    else:
        raise UnknownError(f"tcgen05.{what}")


def _product(writer: Writer, instruction: Instruction) -> None:
    kind = next(part for part in instruction.parts if part.startswith("kind::"))[6:]
    target, a, b, descriptor, *rest = instruction.operands
    if isinstance(rest[0], Vector):
        disabled = writer.tuple_of(rest.pop(0))
        writer.emit(f"tcgen05.check_all_lanes({disabled}, g, {writer.guard(instruction)})")
    if instruction.has("block_scale") != (kind == "mxf8f6f4"):
        raise UnknownError(f"{instruction.opcode}: .kind::mxf8f6f4 has scales, and no other kind")
    scales = "()"
    if instruction.has("block_scale"):
        addresses = [writer.address(rest.pop(0), "u32") for _ in range(2)]
        scales = f"({', '.join(addresses)})"
    if len(rest) != 1:
        raise UnknownError(f"{instruction.opcode}: D scaled before it is added")
    if isinstance(a, Address):
        left = f"('tensor', {writer.address(a, 'u32')})"
    else:
        left = f"('shared', {writer.value(a, 'u64', array=True)})"
    keep = writer.value(rest[0], "pred", array=True)
    writer.emit(
        f"tcgen05.multiply(w, g, {kind!r}, {instruction.has('cta_group::2')}, "
        f"{writer.address(target, 'u32')}, {left}, {writer.value(b, 'u64', array=True)}, "
        f"{writer.value(descriptor, 'u32', array=True)}, {keep}, {writer.guard(instruction)}, {scales})"
    )


def _transfer(writer: Writer, instruction: Instruction) -> None:
    """Write a load from or a store to tensor memory; 16x32bx2 has an offset behind the address."""
    shape = next(part for part in instruction.parts if part in SHAPES)
    times = next(int(part[1:]) for part in instruction.parts if part[0] == "x")
    guard, operands = writer.guard(instruction), list(instruction.operands)
    loads = instruction.parts[1] == "ld"
    split = 0
    if shape == "16x32bx2":
        offset = operands.pop(2 if loads else 1)
        assert isinstance(offset, Immediate)
        split = int(offset.value)
    how = f"{shape!r}, {split}, {guard}"
    if loads:
        address, count = writer.address(operands[1], "u32"), registers_of(shape) * times
        result = writer.temporary(f"tensor_memory.load(w, g, {address}, {count}, {how})")
        writer.put_all(instruction, operands[0], result, "b32")
    else:
        address, words = writer.address(operands[0], "u32"), writer.tuple_of(operands[1])
        writer.emit(f"tensor_memory.store(w, g, {address}, {words}, {how})")


def _cluster_launch(writer: Writer, instruction: Instruction) -> None:
    operands = instruction.operands
    if instruction.parts[1] == "try_cancel":
        every = instruction.has("multicast::cluster::all")
        address, mbarrier = (writer.address(operand, "u32") for operand in operands[:2])
        guard = writer.guard(instruction)
        writer.emit(f"cluster_launch.try_cancel(w, g, {address}, {mbarrier}, {every}, {guard})")
        return
    answer = writer.value(operands[1], "b128", array=True)
    if instruction.has("is_canceled"):
        text = f"cluster_launch.is_cancelled({answer})"
        writer.put(instruction, operands[0], text, "pred")
        return
    words = writer.temporary(f"cluster_launch.words_of({answer})")
    items = operands[0].items if isinstance(operands[0], Vector) else (operands[0],)
    axis = next((part[-1] for part in instruction.parts if part[-3:] in ("::x", "::y", "::z")), "x")
    first = "xyz".index(axis)
    for place, item in enumerate(items):
        writer.put(instruction, item, f"{words}[:, {first + place}].copy()", "b32")


_COUNTS = " ".join(f"x{1 << i}" for i in range(8))

OPCODES: dict[str, Opcode] = {
    "tcgen05": opcode(
        _tcgen05,
        f"alloc dealloc commit mma ld st sync aligned cta_group::1 cta_group::2 {' '.join(SHAPES)} {_COUNTS} "
        "kind::f16 kind::tf32 kind::i8 kind::f8f6f4 kind::mxf8f6f4 block_scale block32 scale_vec::1X mbarrier::arrive::one multicast::cluster "
        "collector::a::fill collector::a::use collector::a::lastuse collector::a::discard "
        + " ".join((*_WAITS, *_FENCES)),
        SPACES,
    ),
    "clusterlaunchcontrol": opcode(
        _cluster_launch,
        "try_cancel query_cancel is_canceled get_first_ctaid get_first_ctaid::x get_first_ctaid::y "
        "get_first_ctaid::z async v4 multicast::cluster::all mbarrier::complete_tx::bytes",
        SPACES,
    ),
}
