"""A block is there until another one has arrived at its mbarrier, if it waits for that; else it may have ended."""

from __future__ import annotations

import pytest

from tests.emulator.machine.schedule import WATCHED
from tests.emulator.races.touched import RaceError
from tests.emulator.snippet import run
from tests.support.emulator.threads import OWN, numbers

_CLUSTER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
_BEGIN = f"""{OWN}
  .shared .align 8 .b64 bar; .reg .b32 %s; .reg .pred %done, %first;
  mov.u32 %s, bar; xor.b32 %s, %s, 0x1000000;
  setp.eq.u32 %p, %tid, 0; setp.lt.u32 %first, %tid, 32;
  @%p mbarrier.init.shared::cta.b64 [bar], 1; {_CLUSTER}
  @%p mbarrier.arrive.shared::cluster.b64 _, [%s];
"""
"""A thread of each of two blocks arrives at the other's mbarrier."""
_WAIT = "L: mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0; @!%done bra L;"


@pytest.mark.parametrize("end", ["", "bar.sync 0;"])
def test_a_block_that_waits_for_no_arrival_may_have_ended(end: str) -> None:
    with pytest.raises(RaceError, match=r"touches an mbarrier of block \(1, 0, 0\), which may"):
        run(_BEGIN + end, [numbers(64)], grid=2, cluster=2, schedule=WATCHED)


@pytest.mark.parametrize("end", [_WAIT, _CLUSTER])
def test_a_block_is_there_if_it_waits(end: str) -> None:
    run(_BEGIN + end, [numbers(64)], grid=2, cluster=2, schedule=WATCHED)


def test_a_block_is_there_while_one_of_its_warps_waits() -> None:
    """The second warp of each block ends without."""
    body = f"{_BEGIN} @!%first bra END; {_WAIT} END:"
    run(body, [numbers(64)], grid=2, cluster=2, block=64, schedule=WATCHED)
