"""Which instruction is at work: what goes on when it is over, and what it has touched, keep it for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.ptx.syntax import Instruction
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import Lanes

_LONGEST_NAME = 80


@dataclass(frozen=True)
class Origin:
    """An instruction, and who has run it.

    Attributes:
        kernel: The name of the kernel, shortened.
        instruction: The instruction.
        lanes: The numbers of its lanes.
        known: All lanes, which describes them.
    """

    kernel: str
    instruction: Instruction
    lanes: Array = field(repr=False)
    known: Lanes = field(repr=False)

    @property
    def where(self) -> str:
        """Kernel, PTX line, source line and text."""
        return f"{self.kernel}, {self.line}: {self.instruction.text}"

    @property
    def line(self) -> str:
        """PTX line and source line."""
        return str(self.instruction.place)

    def __str__(self) -> str:
        return f"{self.where} [{self.known.describe(self.lanes)}]"

    def run(self, work: Callable[[], None]) -> None:
        """Do what the instruction has left to do, later; what goes wrong in it has its place.

        Raises:
            FaultError: As the work does.
        """
        try:
            work()
        except FaultError as fault:
            if fault.place:
                raise
            raise fault.at(str(self)) from fault


class Issuer:
    """The instruction that runs, among those that may issue something or touch shared memory.

    Attributes:
        number: Its place among them.
    """

    def __init__(self, kernel: str, instructions: Sequence[Instruction], lanes: Lanes) -> None:
        self._kernel = short_name(kernel)
        self._instructions, self._all = instructions, lanes
        self.number = 0
        self._group: Group | None = None

    def begin(self, number: int, group: Group) -> None:
        """Take note of the instruction that begins, and of the lanes that run it."""
        self.number, self._group = number, group

    def origin(self) -> Origin:
        """Return what runs."""
        lanes = np.zeros(0, np.int64) if self._group is None else self._group.lanes
        return Origin(self._kernel, self._instructions[self.number], lanes, self._all)

    def line_of(self, number: int) -> str:
        """Return PTX line, source line and text of an instruction."""
        instruction = self._instructions[number]
        return f"{instruction.place}: {instruction.text}"


def short_name(kernel: str) -> str:
    """Return a kernel's name as reports have it."""
    return kernel if len(kernel) <= _LONGEST_NAME else f"{kernel[: _LONGEST_NAME - 3]}..."


def never_waited_for(left: Iterable[tuple[Origin, int]], what: str) -> list[str]:
    """Return a line for each instruction that has left something undone.

    Args:
        left: The origin and the number of threads of each operation.
        what: What they are, with ``{threads}`` for how many threads they are of.
    """
    together: dict[str, list[int]] = {}
    for origin, threads in left:
        together.setdefault(origin.where, []).append(threads)
    return [
        f"{where}: {len(counts)} {what.format(threads=sum(counts))} were never waited for"
        for where, counts in together.items()
    ]
