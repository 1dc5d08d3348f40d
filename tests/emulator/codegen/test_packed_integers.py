"""``cvt.pack``: two integers as narrow ones in a register, against Python's integers."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import evaluate

NUMBERS = (0, 1, -1, 127, 128, 255, 256, -128, -129, 32767, 32768, 65535, 65536, -32768, -32769)
LIMITS = (2**31 - 1, -(2**31))
PAIRS = np.array([*itertools.product((*NUMBERS, *LIMITS), repeat=2)], np.int32)


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16"])
def test_two_integers_are_limited_and_packed(kind: str) -> None:
    rest = np.arange(len(PAIRS), dtype=np.uint32) * np.uint32(0x01234567)
    bits, third = int(kind[1:]), ".b32 %d, %a, %b, %c" if kind[1:] == "8" else " %d, %a, %b"
    a, b = (PAIRS[:, place].copy().view(np.uint32) for place in (0, 1))
    operands = {"%a": ("b32", a), "%b": ("b32", b), "%c": ("b32", rest)}
    (got,) = evaluate(f"cvt.pack.sat.{kind}.s32{third};", operands, {"%d": "b32"})
    low = -(1 << bits - 1) if kind[0] == "s" else 0
    for (x, y), more, word in zip(PAIRS.tolist(), rest.tolist(), got.tolist(), strict=True):
        lower, upper = (min(max(each, low), low + (1 << bits) - 1) % (1 << bits) for each in (y, x))
        above = more << 2 * bits if kind[1:] == "8" else 0
        assert word == (lower + (upper << bits) + above) % 2**32


@pytest.mark.parametrize("text", ["pack.sat.s4.s32.b32", "pack.s8.s32.b32", "pack.sat.s8.u32.b32"])
def test_other_packed_integers_are_refused(text: str) -> None:
    operands = {"%a": ("b32", np.zeros(4, np.uint32))}
    with pytest.raises(PtxError, match=text.replace(".", r"\.")):
        evaluate(f"cvt.{text} %d, %a, %a, %a;", operands, {"%d": "b32"})
