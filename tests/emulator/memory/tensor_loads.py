"""Registers that a ``tcgen05.ld`` has not filled yet: it runs on its own until its warp's ``tcgen05.wait::ld``."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.threads.group import Group


class PendingTensorLoads:
    """Loads from tensor memory of all warps that are not waited for.

    Registers are counted among those that loads of the kernel write, and copies of these (`Program.loaded`), warps in the wave.

    Attributes:
        flying: Whether any register belongs to such a load.
    """

    def __init__(self, registers: int, warps: int) -> None:
        self._pending = np.zeros((registers, warps), bool)
        self.flying = False

    def issue(self, registers: Array, group: Group, guard: Array | None) -> None:
        """Begin a load to these registers."""
        self._pending[np.ix_(registers, _warps(group, guard))] = True
        self.flying = True

    def copy(self, targets: Array, sources: Array, group: Group) -> None:
        """Take note of a copy: it is ready when its sources are.

        Compilers move copies before the wait, and ptxas makes one register of both.
        """
        warps = _warps(group, None)
        self._pending[np.ix_(targets, warps)] = self._pending[np.ix_(sources, warps)].any(0)

    def check(self, registers: Array, group: Group) -> None:
        """Check that these registers are ready.

        Raises:
            FaultError: One is not.
        """
        if self._pending[np.ix_(registers, _warps(group, None))].any():
            raise FaultError("registers of a tcgen05.ld are used before tcgen05.wait::ld")

    def wait(self, group: Group, guard: Array | None) -> None:
        """Wait for all loads of the warps."""
        self._pending[:, _warps(group, guard)] = False
        self.flying = bool(self._pending.any())


def _warps(group: Group, guard: Array | None) -> Array:
    """Return the numbers of the warps that take part."""
    return np.unique((group.lanes if guard is None else group.lanes[group.all(guard)]) >> 5)
