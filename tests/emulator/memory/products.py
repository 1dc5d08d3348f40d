"""What ``wgmma`` instructions may touch until they are waited for: registers, and operands in shared memory.

A product runs on its own from its issue to the wait for its group. Until then its accumulators may not be read or written, nor
the registers of A written, nor its operands in shared memory; and registers written before it need a ``wgmma.fence`` between.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.races.shared import Races
from tests.emulator.threads.group import Group
from tests.emulator.threads.origin import Issuer, Origin

_NONE = -1


@dataclass(frozen=True)
class _Read:
    """An operand in shared memory: a warp that waits for it, its group of products, how to read it again, what was there, of which product."""

    warp: int
    number: int
    again: Callable[[], Array]
    was: Array
    origin: Origin

    def is_unchanged(self) -> bool:
        """Return whether the same is still there."""
        return np.array_equal(self.again(), self.was, equal_nan=True)


@dataclass(frozen=True)
class _Issued:
    """A product of some warps, and the group it belongs to for each of them."""

    warps: Array
    groups: Array
    origin: Origin


class PendingProducts:
    """Products of all warps that are not waited for.

    Registers are counted among those that any product of the kernel uses (`Program.tracked`), warps in the wave.

    Attributes:
        flying: Whether any register belongs to such a product.
    """

    def __init__(
        self, registers: int, warps: int, issuer: Issuer, races: Races | None = None, *, late: bool
    ) -> None:
        """Begin without products; operands in shared memory are looked at in a late schedule only."""
        self._late, self._issuer, self._races = late, issuer, races
        self._committed: Array = np.zeros(warps, np.int64)
        self._groups = np.full((registers, warps), _NONE)
        self._written = np.ones((registers, warps), bool)
        self._reads: list[_Read] = []
        self._issued: list[_Issued] = []
        self.flying = False

    def fence(self, group: Group) -> None:
        """Order registers written so far before the products that follow."""
        self._written[:, _warps(group)] = False

    def wrote(self, registers: Array, group: Group) -> None:
        """Take note of registers that were written by other instructions."""
        self._written[np.ix_(registers, _warps(group))] = True

    def issue(self, registers: Array, group: Group) -> None:
        """Begin a product with these registers.

        Raises:
            FaultError: One was written and there was no fence since.
        """
        where = np.ix_(registers, _warps(group))
        if self._written[where].any():
            raise FaultError(
                "there is no wgmma.fence between this wgmma and what has written its registers"
            )
        warps = _warps(group)
        groups = np.array(self._committed[warps])
        self._groups[where] = groups
        self._issued.append(_Issued(warps, groups, self._issuer.origin()))
        self.flying = True

    def reads(self, warp: int, again: Callable[[], Array], was: Array) -> None:
        """Take note of an operand in shared memory."""
        if self._late:
            number = int(self._committed[warp])
            self._reads.append(_Read(warp, number, again, was, self._issuer.origin()))

    def check(self, registers: Array, group: Group) -> None:
        """Check that no product uses these registers any more.

        Raises:
            FaultError: One does.
        """
        if (self._groups[np.ix_(registers, _warps(group))] != _NONE).any():
            raise FaultError("registers of a wgmma are used before it was waited for")

    def committed(self, warp: int) -> int:
        """Return how many groups of products a warp has committed."""
        return int(self._committed[warp])

    def commit(self, group: Group) -> None:
        """End the group of products of each warp."""
        self._committed[_warps(group)] += 1

    def wait(self, group: Group, allowed: int) -> None:
        """Wait for all groups but the last ``allowed``.

        Raises:
            FaultError: What one reads from shared memory was overwritten.
        """
        warps = _warps(group)
        if self._races is not None:
            self._races.waited("product", group.lanes, self._committed[group.lanes >> 5] - allowed)
        if self.flying:
            groups = self._groups[:, warps]
            groups[groups < self._committed[warps] - allowed] = _NONE
            self._groups[:, warps] = groups
            self.flying = bool((self._groups != _NONE).any())
            self._issued = [
                left for each in self._issued if (left := self._left_of(each, warps, allowed))
            ]
        mine, kept = set(warps.tolist()), list[_Read]()
        for read in self._reads:
            if read.warp not in mine or read.number >= self._committed[read.warp] - allowed:
                kept.append(read)
            elif not read.is_unchanged():
                raise FaultError(
                    f"shared memory that the wgmma at {read.origin.line} reads was overwritten before this wait for it"
                )
        self._reads = kept

    def _left_of(self, issued: _Issued, warps: Array, allowed: int) -> _Issued | None:
        """Return the warps of a product that have not waited for it, None if there are none."""
        waited = np.isin(issued.warps, warps)
        left = ~(waited & (issued.groups < self._committed[issued.warps] - allowed))
        if left.all():
            return issued
        if not left.any():
            return None
        return _Issued(issued.warps[left], issued.groups[left], issued.origin)

    def finish(self) -> list[str]:
        """Return a line about each product that a warp has not waited for.

        Raises:
            FaultError: What one reads from shared memory was overwritten.
        """
        for read in self._reads:
            if not read.is_unchanged():
                raise FaultError(
                    "shared memory that this wgmma reads was overwritten, and nobody has waited for it",
                    place=str(read.origin),
                )
        warps: dict[str, set[int]] = {}
        for each in self._issued:
            warps.setdefault(each.origin.where, set()).update(each.warps.tolist())
        return [
            f"{where}: wgmma operations of {len(mine)} warps were never waited for"
            for where, mine in warps.items()
        ]


def _warps(group: Group) -> Array:
    """Return the numbers of a group's warps."""
    if "warp numbers" not in group.cache:
        group.cache["warp numbers"] = np.unique(group.lanes >> 5)
    return group.cache["warp numbers"]
