"""Races on tensor memory of sm_100, by happens-before as in `races`, in pieces of one column of 16 lanes:
an accumulator of 64 rows uses every second of them, and the next one may have the others.

``tcgen05.ld`` and ``tcgen05.st`` run on their own until their warp's ``tcgen05.wait``, so a barrier orders only those that were waited
for before it. The register that a load fills may be read at once: the dependency orders it, and nothing else (PTX ISA, "Register
dependencies, same thread"; CUTLASS's epilogues rely on it: https://github.com/NVIDIA/cutlass/issues/2525). Products of one
thread are in order among each other; what they have done is known to whoever has seen their commit.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import I64, Array
from tests.emulator.races.shared import Races
from tests.emulator.races.touched import RaceError
from tests.emulator.threads.origin import Issuer

Transfer: TypeAlias = Literal["ld", "st"]
Pieces: TypeAlias = tuple[slice, Array]
"""Parts of the lanes, and columns."""

_PARTS, _PART_LANES, _COLUMNS = 8, 16, 512
_THIS = "column {column} of tensor memory, which is"
_LINE_BITS = 20
"""Bits of the number of an instruction, which lie below those of a step."""
_LINE = (1 << _LINE_BITS) - 1
_NEVER = 1 << 42
"""The step of what is not waited for: nobody knows it."""


class _Block:
    """The last step in which each agent has read or written a piece since others wrote it, and by which instruction.

    [parts, columns, agents]; the number of the instruction in the lowest bits.
    """

    def __init__(self, agents: int) -> None:
        self.reads = np.zeros((_PARTS, _COLUMNS, agents), I64)
        self.writes = np.zeros((_PARTS, _COLUMNS, agents), I64)


class TensorRaces:
    """Who has touched which pieces of tensor memory."""

    def __init__(self, races: Races, issuer: Issuer) -> None:
        self._races, self._issuer = races, issuer
        self._blocks: dict[int, _Block] = {}
        self._pending: dict[tuple[Transfer, int], list[tuple[int, Pieces]]] = {}

    def issued(self, what: Transfer, block: int, lanes: Array, columns: Array, warp: int) -> None:
        """Take note of a load or a store of a warp.

        Raises:
            RaceError: Others have touched the columns, and nothing orders the two.
        """
        touched, pieces = self._block(block), (_parts(lanes), columns)
        if what == "ld":
            self._check(touched.writes[pieces], columns, warp, f"reads {_THIS} written")
            touched.reads[(*pieces, warp)] = self._noted(_NEVER)
        else:
            self._check_all(touched, pieces, warp, "writes")
            touched.reads[pieces] = touched.writes[pieces] = 0
            touched.writes[(*pieces, warp)] = self._noted(_NEVER)
        self._pending.setdefault((what, warp), []).append((block, pieces))

    def waited(self, what: Transfer, warps: Sequence[int]) -> None:
        """Take note that warps have waited for their loads, or for their stores."""
        for warp in warps:
            for block, pieces in self._pending.pop((what, warp), ()):
                touched = self._block(block)
                steps = (touched.reads if what == "ld" else touched.writes)[..., warp]
                was, known = steps[pieces], self._races.step_of(warp) << _LINE_BITS
                steps[pieces] = np.where(was >> _LINE_BITS == _NEVER, known | was & _LINE, was)

    def multiplied(
        self, block: int, target: tuple[Array, Array], operands: Sequence[Array], warp: int
    ) -> None:
        """Take note of a ``tcgen05.mma`` that writes lanes and columns ``target``, and reads columns of ``operands`` in tensor memory.

        Raises:
            RaceError: Others have touched them, and nothing orders the two.
        """
        agent, step = self._races.tensor_step(warp)
        lanes, columns = target
        touched, pieces = self._block(block), (_parts(lanes), np.unique(columns))
        self._check_all(touched, pieces, warp, "writes, by a tcgen05.mma,", agent)
        touched.reads[pieces] = touched.writes[pieces] = 0
        touched.writes[(*pieces, agent)] = self._noted(step)
        for read in operands:
            does = f"reads, by a tcgen05.mma, {_THIS} written"
            self._check(touched.writes[:, read], read, warp, does)
            touched.reads[:, read, agent] = self._noted(step)

    def allocated(self, block: int, columns: Array, warp: int) -> None:
        """Take note that a warp allocates columns: whoever touches them has an order with that."""
        touched, pieces = self._block(block), (slice(None), columns)
        touched.reads[pieces] = touched.writes[pieces] = 0
        touched.writes[(*pieces, warp)] = self._noted(self._races.step_of(warp))

    def freed(self, block: int, columns: Array, warp: int) -> None:
        """Take note that columns are given back.

        Raises:
            RaceError: Others may still use them.
        """
        self._check_all(self._block(block), (slice(None), columns), warp, "gives back")

    def _noted(self, step: int) -> int:
        """Return a step with the instruction that runs."""
        return step << _LINE_BITS | self._issuer.number

    def _block(self, block: int) -> _Block:
        if block not in self._blocks:
            self._blocks[block] = _Block(self._races.agents)
        return self._blocks[block]

    def _check_all(
        self, touched: _Block, pieces: Pieces, warp: int, does: str, own: int | None = None
    ) -> None:
        columns = pieces[1]
        self._check(touched.writes[pieces], columns, warp, f"{does} {_THIS} written", own)
        self._check(touched.reads[pieces], columns, warp, f"{does} {_THIS} read", own)

    def _check(
        self, steps: Array, columns: Array, warp: int, does: str, own: int | None = None
    ) -> None:
        unknown = steps >> _LINE_BITS > self._races.known_to(warp)
        if own is not None:
            unknown[..., own] = False
        if not unknown.any():
            return
        part, place, agent = (int(each[0]) for each in np.nonzero(unknown))
        step, line = divmod(int(steps[part, place, agent]), 1 << _LINE_BITS)
        waits = "and no tcgen05.wait " if step == _NEVER else ""
        raise RaceError(
            f"{self._races.named(warp)} {does.format(column=int(columns[place]))} by "
            f"{self._races.named(agent)}: no barrier {waits}orders the two; the earlier one is "
            f"{self._issuer.line_of(line)}"
        )


def _parts(lanes: Array) -> slice:
    """Return the parts that lanes lie in: one, neighbours, or every second."""
    parts = np.unique(lanes // _PART_LANES).tolist()
    step = parts[1] - parts[0] if len(parts) > 1 else 1
    result = slice(parts[0], parts[-1] + 1, step)
    assert parts == [*range(_PARTS)[result]]
    return result
