"""What is counted of a kernel's accesses: bytes, and passes over the banks of shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.memory.traffic import Traffic
from tests.emulator.threads.group import Group


def conflicts(addresses: list[int], width: int) -> tuple[int, int]:
    traffic = Traffic()
    lanes = np.arange(len(addresses))
    traffic.passed(np.array(addresses, np.uint32), width, Group(lanes, 0))
    return traffic.counts["shared passes"], traffic.counts["shared conflicts"]


@pytest.mark.parametrize(
    ("step", "width", "expected"),
    [
        (4, 4, (1, 0)),  # neighbouring words
        (0, 4, (1, 0)),  # the same word for all
        (8, 4, (2, 1)),  # every second bank
        (128, 4, (32, 31)),  # one bank
        (132, 4, (1, 0)),  # a row with a word of padding
        (8, 8, (2, 0)),  # half a warp at a time
        (16, 16, (4, 0)),  # a quarter
        (128, 16, (32, 28)),
        (2, 2, (1, 0)),  # two lanes in one word
    ],
)
def test_a_warp_passes_over_its_banks(step: int, width: int, expected: tuple[int, int]) -> None:
    assert conflicts([step * lane for lane in range(32)], width) == expected


def test_each_warp_has_its_own_passes() -> None:
    assert conflicts([4 * lane for lane in range(64)], 4) == (2, 0)


def test_bytes_and_products_are_added() -> None:
    traffic = Traffic()
    traffic.moved("global", "read", 64)
    traffic.moved("global", "read", 32)
    traffic.multiplied(16, 8, 16, 2)
    assert traffic.counts == {"global read": 96, "tensor operations": 8192}
