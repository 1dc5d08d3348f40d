"""Kernels with one synchronising instruction taken out: what the emulator notices of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError

_WITHOUT = {
    "bar.sync": "bar.warp.sync -1;",
    "mbarrier.arrive": "",
    "cp.async.wait_group": "",
    "cp.async.bulk.commit_group": "",
    "cp.async.bulk.wait_group": "",
    "wgmma.fence": "",
    "wgmma.wait_group": "",
    "fence.proxy.async": "",
    "barrier.cluster": "",
}
"""What takes the place of an instruction, by the beginning of its opcode."""


@dataclass(frozen=True)
class Mutant:
    """A module without one instruction.

    Attributes:
        line: Line of the instruction, from 1.
        opcode: The beginning of its opcode, a key of the table above.
        old: The line.
        new: What is there instead.
    """

    line: int
    opcode: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return a module's text without the instruction."""
        lines = text.split("\n")
        assert lines[self.line - 1] == self.old
        lines[self.line - 1] = self.new
        return "\n".join(lines)


def mutants(text: str, ran: frozenset[int], opcode: str) -> Iterator[Mutant]:
    """Yield a mutant for each instruction of an opcode that ran; ``ran`` are lines, from 1."""
    pattern = re.compile(rf"\s*(@!?%?\w+\s+)?{re.escape(opcode)}\b.*;\s*$")
    for number, line in enumerate(text.split("\n"), 1):
        if number in ran and pattern.match(line):
            yield Mutant(number, opcode, line, _WITHOUT[opcode])


def noticed(run: Callable[[], bool]) -> bool:
    """Return whether a run of a mutant is wrong or refused; ``run`` returns whether its numbers are right."""
    try:
        return not run()
    except (FaultError, KernelError):
        return True
