"""Which global memory a kernel may touch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U64, Array
from tests.emulator.fault import CudaError, FaultError


class Allowed:
    """Ranges of addresses; anything outside of them is a fault.

    A GPU protects whole pages, so that a kernel that reads a little too much works there by chance.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take (first byte, byte behind the last one) of each operand; they may overlap."""
        merged: list[list[int]] = []
        for begin, end in sorted(ranges):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        self._ranges = [(begin, end) for begin, end in merged]
        self._begin = np.array([begin for begin, _ in merged], U64)
        self._end = np.array([end for _, end in merged], U64)

    def with_arrays(self, arrays: Iterable[Array]) -> Allowed:
        """Return these ranges and the bytes of arrays."""
        more = ((array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays)
        return Allowed([*self._ranges, *more])

    def wrong(self, addresses: Any, width: int) -> Array:
        """Return which of some addresses do not have ``width`` bytes here."""
        address = np.atleast_1d(np.asarray(addresses, U64))
        if not len(self._begin):
            return np.ones(len(address), bool)
        place = np.searchsorted(self._begin, address, "right").astype(I64) - 1
        return (place < 0) | (address + U64(width) > self._end[place])

    def check(self, address: int, width: int, what: str) -> None:
        """Check one range.

        Raises:
            FaultError: It is not allowed.
        """
        if self.wrong(address, width).any():
            raise FaultError(
                f"{what} touches {width} bytes at global address {address:#x}, which are in no operand",
                CudaError.ILLEGAL_ADDRESS,
            )
