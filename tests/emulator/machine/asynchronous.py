"""What threads issue and an mbarrier tells the end of, besides loads: arrivals behind copies, ``st.async``, ``red.async``."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.machine.wave import Wave
from tests.emulator.memory.atomics import atomic
from tests.emulator.threads.group import Group

_Columns: TypeAlias = tuple[Array, ...]


def _by_mbarrier(
    wave: Wave, group: Group, mbarrier: Any, guard: Array | None
) -> Iterator[tuple[int, Array]]:
    """Yield each mbarrier that active lanes name, and the places of those lanes."""
    places: dict[int, list[int]] = {}
    for place in group.active(guard):
        where, _ = wave.mbarriers.reached(mbarrier, group, place)
        places.setdefault(where, []).append(place)
    for where, mine in places.items():
        yield where, np.array(mine)


def arrive_behind_copies(
    wave: Wave, group: Group, mbarrier: Any, guard: Array | None, *, counted: bool
) -> None:
    """Arrive at an mbarrier for each lane when its ``cp.async`` so far are done; the lane itself waits for nothing.

    Args:
        wave: The wave.
        group: The lanes.
        mbarrier: Its address.
        guard: Which lanes take part.
        counted: Whether the phase that is current now awaits one arrival more for each (without ``.noinc``).
    """
    for where, places in _by_mbarrier(wave, group, mbarrier, guard):
        lanes = group.lanes[places]
        if counted:
            wave.mbarriers.awaits(where, len(lanes))
        if wave.memory.races is not None:
            steps = wave.copies.steps(lanes)
            wave.memory.races.arrives_behind_copies(where, lanes, steps)
        copies = wave.copies.arrive(lanes)
        wave.loads.issue(where, functools.partial(_arrive, wave, copies, where, len(lanes)))


def _arrive(wave: Wave, copies: Callable[[], None], mbarrier: int, count: int) -> None:
    copies()
    for _ in range(count):  # one by one, since a phase may end between them
        wave.mbarriers.arrived(mbarrier)


def store(
    wave: Wave,
    group: Group,
    address: Any,
    values: _Columns,
    kind: str,
    mbarrier: Any,
    guard: Array | None,
) -> None:
    """Store elements of each lane to shared memory of its cluster, whose bytes an mbarrier counts (``st.async``)."""
    width = np.dtype(kind).itemsize * len(values)
    for where, places in _by_mbarrier(wave, group, mbarrier, guard):
        part, to, columns = _kept(wave, group, places, address, values)
        work = functools.partial(
            wave.memory.store, "shared", to, columns, kind, None, part, mbarrier=where
        )
        wave.loads.issue(where, functools.partial(_deliver, wave, work, where, width, part.n))


def combine(
    wave: Wave,
    group: Group,
    operation: str,
    address: Any,
    values: _Columns,
    kind: str,
    width: int,
    mbarrier: Any,
    guard: Array | None,
) -> None:
    """Change shared memory of the cluster atomically, for each lane, whose ``width`` bytes an mbarrier counts (``red.async``)."""
    for where, places in _by_mbarrier(wave, group, mbarrier, guard):
        part, to, columns = _kept(wave, group, places, address, values)
        work = functools.partial(
            atomic, wave.memory, operation, "shared", to, [columns], kind, None, part, where
        )
        wave.loads.issue(where, functools.partial(_deliver, wave, work, where, width, part.n))


def _kept(
    wave: Wave, group: Group, places: Array, address: Any, values: _Columns
) -> tuple[Group, Array, _Columns]:
    """Return some lanes, their addresses and values: not registers themselves, which may change before a late operation is done.

    Raises:
        FaultError: An address is outside of the shared memory of the lane's cluster.
    """
    part = Group(group.lanes[places], group.block)
    to = np.array(group.all(address)[places])
    wave.memory.resolve("shared", to, part, 1, written=True)
    return part, to, tuple(np.array(group.all(value)[places]) for value in values)


def _deliver(wave: Wave, work: Callable[[], object], mbarrier: int, width: int, count: int) -> None:
    work()
    for _ in range(count):
        wave.mbarriers.received(mbarrier, width)
