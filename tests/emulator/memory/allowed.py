"""Which global memory a kernel may touch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import I64, U64, Array
from tests.emulator.fault import CudaError, FaultError


class _Ranges:
    """Ranges of addresses, those that touch or overlap joined."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        for begin, end in sorted(ranges):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        self.listed = [(begin, end) for begin, end in merged]
        self._begin = np.array([begin for begin, _ in merged], U64)
        self._end = np.array([end for _, end in merged], U64)

    def wrong(self, address: Array, width: int) -> Array:
        if not len(self._begin):
            return np.ones(len(address), bool)
        place = np.searchsorted(self._begin, address, "right").astype(I64) - 1
        end = self._end[place]
        return (place < 0) | (address > end) | (U64(width) > end - address)  # a sum would wrap


def _range_of(array: Array) -> tuple[int, int]:
    return array.ctypes.data, array.ctypes.data + array.nbytes


class Allowed:
    """Ranges of addresses; anything outside of them is a fault, and so is a write to what may only be read.

    A GPU protects whole pages, so that a kernel that reads a little too much works there by chance.
    """

    def __init__(
        self, ranges: Iterable[tuple[int, int]], only_read: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Take (first byte, byte behind the last one) of each operand; they may overlap.

        Args:
            ranges: What may be read and written.
            only_read: What may be read, besides.
        """
        self._written = _Ranges(ranges)
        self._read = _Ranges([*self._written.listed, *only_read])

    def with_arrays(self, arrays: Iterable[Array], only_read: Iterable[Array] = ()) -> Allowed:
        """Return these ranges and the bytes of arrays, which may be written, too, and of others, which may only be read."""
        more = [*self._written.listed, *map(_range_of, arrays)]
        return Allowed(more, [*self._read.listed, *map(_range_of, only_read)])

    def wrong(self, addresses: Any, width: int, *, written: bool = False) -> Array:
        """Return which of some addresses do not have ``width`` bytes here that may be read, or ``written``."""
        address = np.atleast_1d(np.asarray(addresses, U64))
        return (self._written if written else self._read).wrong(address, width)

    def reason(self, address: int, width: int) -> str:
        """Return what is wrong with bytes that are not allowed."""
        in_none = self.wrong(address, width).any()
        return "in no operand" if in_none else "in an operand that may only be read"

    def check(self, address: int, width: int, what: str, *, written: bool = False) -> None:
        """Check one range.

        Raises:
            FaultError: It is not allowed.
        """
        if self.wrong(address, width, written=written).any():
            raise FaultError(
                f"{what} touches {width} bytes at global address {address:#x}, {self.reason(address, width)}",
                CudaError.ILLEGAL_ADDRESS,
            )
