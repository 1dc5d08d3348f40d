"""Kernels with one instruction taken out or bent: what the emulator notices of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError

_WITHOUT = {
    "bar.sync": "bar.warp.sync -1;",
    "bar.arrive": "",
    "bar.warp.sync": "",
    "mbarrier.init": "",
    "mbarrier.arrive": "",
    "cp.async.commit_group": "",
    "cp.async.wait_group": "",
    "cp.async.bulk.commit_group": "",
    "cp.async.bulk.wait_group": "",
    "wgmma.fence": "",
    "wgmma.commit_group": "",
    "wgmma.wait_group": "",
    "fence.proxy.async": "",
    "fence.proxy.tensormap": "",
    "fence.mbarrier_init": "",
    "fence.acq_rel": "",
    "fence.sc": "",
    "membar": "",
    "red": "",
    "barrier.cluster.arrive": "",
    "barrier.cluster.wait": "",
    "tcgen05.commit": "",
    "tcgen05.fence": "",
    "tcgen05.wait": "",
}
"""What takes the place of an instruction, by the beginning of its opcode."""
_WAIT = "mbarrier.try_wait"
_ADDRESSES = {
    "ld.shared": 16,
    "st.shared": 16,
    "ld.global": 16,
    "st.global": 16,
    "ldmatrix": 16,
    "stmatrix": 16,
    "atom": 16,
    "cp.async.c": 16,
    "cp.async.bulk.tensor": 128,
}
"""Accesses whose address is moved by so many bytes, which keeps it aligned; of a copy by TMA, that in shared memory."""
SYNCHRONISING = (*_WITHOUT, _WAIT)
ALL = (*SYNCHRONISING, *_ADDRESSES)
_PLACE = re.compile(r"\[\s*(%\w+)\s*(?:\+\s*(-?\d+))?\s*\]")
_PREDICATE = re.compile(r"\s(%?\w+)\s*,")


@dataclass(frozen=True)
class Mutant:
    """A module with one instruction missing or bent.

    Attributes:
        line: Line of the instruction, from 1.
        opcode: The beginning of its opcode, one of `ALL`.
        old: The line.
        new: What is there instead.
    """

    line: int
    opcode: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return a module's text with the mutation; it has to have the line."""
        lines = text.split("\n")
        assert lines[self.line - 1] == self.old
        lines[self.line - 1] = self.new
        return "\n".join(lines)


def mutants(text: str, ran: frozenset[int], opcode: str) -> Iterator[Mutant]:
    """Yield a mutant for each instruction of an opcode that ran; ``ran`` are lines, from 1."""
    ends = "" if opcode in _ADDRESSES else r"\b"
    pattern = re.compile(rf"\s*(@!?%?\w+\s+)?{re.escape(opcode)}{ends}.*;\s*$")
    for number, line in enumerate(text.split("\n"), 1):
        if number in ran and pattern.match(line) and (new := _bent(line, opcode)) is not None:
            yield Mutant(number, opcode, line, new)


def _bent(line: str, opcode: str) -> str | None:
    """Return a line without its instruction, or with another address; None if it cannot be bent."""
    if opcode in _WITHOUT:
        return _WITHOUT[opcode]
    if opcode == _WAIT:
        predicate = _PREDICATE.search(line.partition(_WAIT)[2])
        return None if predicate is None else f"setp.eq.u32 {predicate[1]}, 0, 0;"
    place = _PLACE.search(line)
    if place is None:
        return None
    moved = f"[{place[1]}+{int(place[2] or 0) + _ADDRESSES[opcode]}]"
    return line[: place.start()] + moved + line[place.end() :]


def noticed(run: Callable[[], bool]) -> bool:
    """Return whether a run of a mutant is wrong or refused; ``run`` returns whether its numbers are right."""
    try:
        return not run()
    except (FaultError, KernelError):
        return True
