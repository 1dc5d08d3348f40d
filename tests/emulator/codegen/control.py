"""Branches, ends, calls, and what changes nothing here."""

from __future__ import annotations

from tests.emulator.codegen.opcode import CACHING, ORDER, SPACES, Opcode, opcode
from tests.emulator.codegen.writer import Writer
from tests.emulator.ptx.syntax import Instruction


def _leave(writer: Writer, instruction: Instruction) -> None:
    if instruction.guard is not None:
        writer.leaves = writer.guard(instruction)


def _table(writer: Writer, instruction: Instruction) -> None:
    writer.leaves = writer.value(instruction.operands[0], "u32")


def _trap(writer: Writer, instruction: Instruction) -> None:
    writer.emit(f"w.trap({instruction.text!r}, {writer.guard(instruction)}, g)")
    _leave(writer, instruction)


def _call(writer: Writer, instruction: Instruction) -> None:
    writer.emit(f"w.call({instruction.text!r}, {writer.guard(instruction)}, g)")


def _fence(writer: Writer, instruction: Instruction) -> None:
    """Write a proxy fence, or one of memory order; of the async proxy one that is for shared memory."""
    guard = writer.guard(instruction)
    lanes = "g.lanes" if instruction.guard is None else f"g.lanes[g.all({guard})]"
    words, parts = {"async", "async::generic"}, set(instruction.parts)
    if words & parts and not instruction.has("global"):
        writer.emit(f"w.fence_proxy({lanes})")
    elif "mbarrier_init" in parts:
        writer.emit(f"w.fence_mbarriers({lanes})")
    elif "proxy" not in parts:  # without an order it is acq_rel, as a membar
        acquires, releases = "release" not in parts, "acquire" not in parts
        writer.emit(f"w.fence({lanes}, acquires={acquires}, releases={releases})")


def _nothing(writer: Writer, instruction: Instruction) -> None:
    """Write nothing: hints."""


def _policy(writer: Writer, instruction: Instruction) -> None:
    writer.put(instruction, instruction.operands[0], "np.zeros(n, np.uint64)", "u64")


_FENCE = (
    "proxy async alias acq_rel sc async::generic mbarrier_init tensormap::generic sync_restrict"
)

OPCODES: dict[str, Opcode] = {
    "bra": opcode(_leave, "uni"),
    "brx": opcode(_table, "idx uni"),
    "exit": opcode(_leave),
    "ret": opcode(_leave, "uni"),
    "trap": opcode(_trap),
    "brkpt": opcode(_trap),
    "call": opcode(_call, "uni"),
    "fence": opcode(_fence, f"{_FENCE} async.global async.shared::cta", ORDER, SPACES),
    "membar": opcode(_fence, "gl proxy async", ORDER),
    "prefetch": opcode(_nothing, "L1 L2 tensormap", SPACES, CACHING),
    "prefetchu": opcode(_nothing, "L1"),
    "discard": opcode(_nothing, "L2", SPACES),
    "applypriority": opcode(_nothing, "", SPACES, CACHING),
    "setmaxnreg": opcode(_nothing, "inc dec sync aligned"),
    "griddepcontrol": opcode(_nothing, "launch_dependents wait"),
    "nanosleep": opcode(_nothing),
    "pmevent": opcode(_nothing, "mask"),
    "createpolicy": opcode(_policy, "fractional range cvt", CACHING, SPACES),
}
"""Barriers of blocks and clusters are run by the machine itself, that of a warp is in `warps`."""
