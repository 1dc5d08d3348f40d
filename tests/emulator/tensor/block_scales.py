"""Scales of ``tcgen05.mma`` with ``.block_scale``: powers of two in tensor memory, each of which 32 numbers along K share.

The scale of row r (of A, or of B, whose rows are the columns of D) lies in lane r % 32, column r / 32 from the scales' address on, in the byte that
the instruction descriptor names (CUTLASS has its number in the highest bits of the address, too: ``make_runtime_instr_desc_block_scaled``
of include/cute/arch/mma_sm100_desc.hpp); each quarter of the lanes has a copy of all (PTX ISA, "Layout of the scale factor A matrix
for scale_vec::1X"; CUTLASS, ``tmem_sf_frg`` of include/cute/atom/mma_traits_sm100.hpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.emulator.arithmetic.arrays import F64, U8, Array
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.wave import Wave
from tests.emulator.tensor import tensor_memory

_ROWS = 128
_QUARTERS, _LANES = 4, 32
_BYTE_BITS = 30
"""Bits of an address below those that name a byte."""
_BIAS, _NAN = 127, 255
"""Of UE8M0: eight bits of an exponent."""


@dataclass(frozen=True)
class Scales:
    """Scales of one operand.

    Attributes:
        address: Where the first column lies in tensor memory.
        rows: How many there are.
        byte: Which byte of each column has them.
    """

    address: int
    rows: int
    byte: int

    @property
    def columns(self) -> Array:
        """The columns of tensor memory."""
        return np.arange(-(-self.rows // _LANES)) + self.address

    def check(self, wave: Wave, block: int) -> None:
        """Check that their columns are allocated.

        Raises:
            FaultError: One is not.
            UnmodelledError: They do not begin at lane 0.
        """
        if self.address >> 16:
            raise UnmodelledError(f"scales of tcgen05.mma from lane {self.address >> 16} on")
        first = self.address
        tensor_memory.check_allocated(wave, block, first, first + len(self.columns))

    def read(self, wave: Wave, block: int) -> Array:
        """Return them as float64, [rows].

        Raises:
            FaultError: The copies differ: which of them a row is multiplied by is not said.
        """
        words = wave.tensor_memory[block][:, self.columns]
        copies = (words >> 8 * self.byte).astype(U8).reshape(_QUARTERS, _LANES, -1)
        used = copies.transpose(0, 2, 1).reshape(_QUARTERS, -1)[:, : self.rows]
        if (used != used[0]).any():
            row = int((used != used[0]).any(0).argmax())
            raise FaultError(f"tcgen05.mma: the four copies of the scale of row {row} differ")
        powers = np.exp2(used[0].astype(F64) - _BIAS)
        return np.where(used[0] == _NAN, np.nan, powers)


def scales_of(
    addresses: tuple[int, int], word: int, rows: int, columns: int
) -> tuple[Scales, Scales]:
    """Return the scales of A and of B.

    Args:
        addresses: Of both, in tensor memory.
        word: The instruction descriptor (PTX ISA, "Instruction descriptor" for ``.kind::mxf8f6f4``).
        rows: M.
        columns: N.

    Raises:
        UnmodelledError: M is not 128, the scales are no powers of two, or an address names another byte than the descriptor.
    """
    if rows != _ROWS or not word >> 23 & 1:
        raise UnmodelledError(
            f"tcgen05.mma with scales, of {rows} rows, and with instruction descriptor {word:#x}"
        )
    sides = zip(addresses, (rows, columns), (word >> 29 & 3, word >> 4 & 3), strict=True)
    a, b = (_side(*side) for side in sides)
    return a, b


def _side(address: int, rows: int, byte: int) -> Scales:
    """Return the scales of an operand.

    Raises:
        UnmodelledError: The highest bits of the address name another byte than the instruction descriptor.
    """
    if address >> _BYTE_BITS not in (0, byte):
        raise UnmodelledError(
            f"tcgen05.mma with scales in byte {byte}, and with an address of byte {address >> _BYTE_BITS}"
        )
    return Scales(address & (1 << _BYTE_BITS) - 1, rows, byte)


def scaled(wave: Wave, block: int, scales: Sequence[Scales], product: Array) -> Array:
    """Return a product [M, N] whose operands' rows are multiplied by their scales."""
    a, b = (each.read(wave, block) for each in scales)
    return product * a[:, None] * b[None, :]
