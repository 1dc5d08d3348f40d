"""Code cut into basic blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.emulator.ptx.syntax import Block, BlockEnd, Instruction, PtxError, Symbol


@dataclass(frozen=True)
class Label:
    """A place in the code."""

    name: str


Code: TypeAlias = Instruction | Label


@dataclass
class _Open:
    """A block that is not complete yet."""

    code: list[Instruction] = field(default_factory=list[Instruction])
    end: BlockEnd = "fall"


def is_barrier(instruction: Instruction) -> bool:
    """Return whether threads may wait in it for threads of other warps."""
    parts = instruction.parts
    return parts[0] in ("bar", "barrier") and parts[1:2] != ("warp",)


def blocks(code: Sequence[Code], tables: Mapping[str, tuple[str, ...]]) -> tuple[Block, ...]:
    """Return the basic blocks; ``tables`` has the labels of each ``.branchtargets``.

    Raises:
        PtxError: A branch leads to no label of the function.
    """
    starts: dict[str, int] = {}
    open_blocks = [_Open()]

    def fresh() -> _Open:
        if open_blocks[-1].code or open_blocks[-1].end != "fall":
            open_blocks.append(_Open())
        return open_blocks[-1]

    for item in code:
        if isinstance(item, Label):
            fresh()
            starts[item.name] = len(open_blocks) - 1
            continue
        if is_barrier(item):
            fresh()
        open_blocks[-1].code.append(item)
        if end := _end(item):
            open_blocks[-1].end = end
            open_blocks.append(_Open())
    if open_blocks[-1].end == "fall":
        open_blocks[-1].end = "exit"
    return tuple(
        Block(
            number,
            tuple(block.code),
            block.end,
            _targets(block, starts, tables),
            number + 1 if number + 1 < len(open_blocks) else None,
        )
        for number, block in enumerate(open_blocks)
    )


def _end(instruction: Instruction) -> BlockEnd | None:
    if is_barrier(instruction):
        return "barrier"
    if instruction.name == "bra":
        return "jump" if instruction.guard is None else "branch"
    if instruction.name == "brx":
        return "table"
    if instruction.name in ("ret", "exit", "trap"):
        return "exit" if instruction.guard is None else "exit_if"
    return None


def _targets(
    block: _Open, starts: Mapping[str, int], tables: Mapping[str, tuple[str, ...]]
) -> tuple[int, ...]:
    if block.end not in ("jump", "branch", "table"):
        return ()
    last = block.code[-1]
    name = last.operands[-1]
    if not isinstance(name, Symbol):
        raise PtxError(f"{last.place}: {last.text!r} names no label")
    labels = tables.get(name.name, ()) if block.end == "table" else (name.name,)
    if not labels or any(label not in starts for label in labels):
        raise PtxError(f"{last.place}: {last.text!r} leads to a label that is not there")
    return tuple(starts[label] for label in labels)
