"""``clusterlaunchcontrol.try_cancel``: a block takes over the work of a cluster that has not started (sm_100)."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U32, Array, flat
from tests.emulator.machine.wave import Wave
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import SHARED_MASK, SHARED_SHIFT

_ANSWER_BYTES = 16


def try_cancel(
    wave: Wave, group: Group, address: Any, mbarrier: Any, every: bool, guard: Array | None
) -> None:
    """Write the first block of a waiting cluster, or that there is none, to shared memory of the block (or of ``every`` one).

    The 16 bytes are opaque in PTX; here x, y, z and whether there is a cluster.
    """
    for place in group.active(guard):
        waiting = wave.waiting_clusters
        answer = (*waiting.pop(0), 1) if waiting else (0, 0, 0, 0)
        words = np.array(answer, U32)
        block = int(wave.lanes.block[group.lanes[place]])
        cluster = int(wave.lanes.cluster[block])
        ranks = range(wave.lanes.shape.cluster_size)
        blocks = [wave.lanes.block_at[cluster, rank] for rank in ranks] if every else [block]
        for each in blocks:
            base = each << SHARED_SHIFT
            where = base | group.at(address, place) & SHARED_MASK
            wave.memory.check_shared(where, _ANSWER_BYTES, "clusterlaunchcontrol", block)
            counted = base | group.at(mbarrier, place) & SHARED_MASK
            wave.mbarriers.at(counted)
            if wave.memory.races is not None:
                words_written = np.arange(where, where + _ANSWER_BYTES, 4)
                wave.memory.races.loaded(words_written, 4, int(group.lanes[place]), counted)
            work = functools.partial(_answer, wave, where, words, counted)
            wave.loads.issue(counted, work)


def _answer(wave: Wave, address: int, words: Array, mbarrier: int) -> None:
    wave.memory.barriers.check(_ANSWER_BYTES, np.array([address // _ANSWER_BYTES]))
    wave.memory.shared_words[4][address >> 2 : (address >> 2) + 4] = words
    wave.mbarriers.received(mbarrier, _ANSWER_BYTES)


def words_of(answer: Array) -> Array:
    """Return the four words of answers, uint32 [lanes, 4]."""
    return flat(answer).view(U32).reshape(-1, 4)


def is_cancelled(answer: Array) -> Array:
    """Return whether a cluster was handed over."""
    return words_of(answer)[:, 3] != 0
