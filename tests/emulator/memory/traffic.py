"""What a kernel moves: bytes of each space, passes of shared memory over its banks, tensor-core operations.

Counted are instructions as the PTX has them. Caches do not exist: bytes of global memory are those that leave or reach the
multiprocessors, a multicast load once for all its blocks.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.emulator.arithmetic.arrays import I64, Array
from tests.emulator.threads.group import Group

_BANKS, _BANK_BYTES, _WARP = 32, 4, 32


class Traffic:
    """Counts of a wave of blocks.

    Attributes:
        counts: By what is counted: ``global read``, ``global written`` (bytes), the same of ``shared`` and ``local``;
            ``shared passes`` and ``shared conflicts``, the passes beyond the fewest; ``tensor operations``.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def moved(self, space: str, direction: str, size: int) -> None:
        """Count bytes that are ``read`` from a space, or ``written`` to it."""
        self.counts[f"{space} {direction}"] += size

    def multiplied(self, rows: int, columns: int, depth: int, count: int = 1) -> None:
        """Count the multiplications and additions of products."""
        self.counts["tensor operations"] += 2 * rows * columns * depth * count

    def passed(self, address: Array, width: int, group: Group) -> None:
        """Count how often shared memory is passed over for one instruction of all its warps.

        A warp's lanes go in parts of 128 bytes; a part takes as many passes as there are different words in one bank.

        Args:
            address: Byte address of each lane.
            width: Bytes of each lane.
            group: The lanes.
        """
        width = max(width, _BANK_BYTES)
        part = np.arange(group.n) if width >= 128 else group.lanes * width // (_WARP * _BANK_BYTES)
        words = (address.astype(I64) // _BANK_BYTES)[:, None] + np.arange(width // _BANK_BYTES)
        parts = np.broadcast_to(np.asarray(part)[:, None], words.shape)
        span = int(words.max()) + 1
        different = np.unique(parts.ravel().astype(I64) * span + words.ravel())
        _, number = np.unique(different // span, return_inverse=True)
        banks = np.zeros((int(number.max()) + 1, _BANKS), I64)
        np.add.at(banks, (number, different % span % _BANKS), 1)
        self.counts["shared passes"] += int(banks.max(1).sum())
        self.counts["shared conflicts"] += int(banks.max(1).sum()) - len(banks)
