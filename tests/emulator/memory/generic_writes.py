"""Shared memory that threads have written, and that the async proxy may not read before a proxy fence.

TMA, ``wgmma`` and ``tcgen05`` read shared memory through the async proxy (PTX ISA, "Async proxy"); what ``st`` and atomic operations
have written, and ``cp.async`` ("performed in the generic proxy", as it says there), is ordered before by ``fence.proxy.async``. Here a fence of any thread of a block counts for all that its block's memory holds, so that
a kernel is found wrong only if no thread has a fence between.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import mmap

import numpy as np

from tests.emulator.arithmetic.arrays import U8, U16, U32, U64, Array
from tests.emulator.fault import FaultError
from tests.emulator.threads.lanes import SHARED_SHIFT

_WORDS = {1: U8, 2: U16, 4: U32, 8: U64, 16: np.complex128}
_MARK = {width: np.frombuffer(b"\xff" * width, kind)[0] for width, kind in _WORDS.items()}
_MAP_NORESERVE = 0x4000


class GenericWrites:
    """A mark for each byte of the shared memory of all blocks."""

    def __init__(self, blocks: int, shared_bytes: int) -> None:
        self._shared_bytes = shared_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._pages = mmap.mmap(-1, blocks << SHARED_SHIFT, flags=flags)
        self._marks: Array = np.frombuffer(self._pages, U8)
        self._words = {width: self._marks.view(kind) for width, kind in _WORDS.items()}
        self._blocks = range(blocks)
        self._any = False

    def wrote(self, width: int, index: Array) -> None:
        """Mark words of ``width`` bytes, by their number."""
        self._words[width][index] = _MARK[width]
        self._any = True

    def fence(self, blocks: Array) -> None:
        """Take all marks of some blocks away."""
        if not self._any:
            return
        for block in np.unique(blocks):
            begin = int(block) << SHARED_SHIFT
            self._marks[begin : begin + self._shared_bytes] = 0

    def check(self, width: int, index: Array, what: str) -> None:
        """Check words that the async proxy reads.

        Raises:
            FaultError: One is marked.
        """
        if not self._any:
            return
        marks = np.ascontiguousarray(self._words[width][index]).view(U8)
        if marks.any():
            raise FaultError(
                f"{what} reads shared memory through the async proxy; threads have written it, and there "
                "is no fence.proxy.async since"
            )
