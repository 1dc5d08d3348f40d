"""What an mbarrier tells the end of is done when it says so, and not before: arrivals behind copies, remote stores, answers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import FaultError
from tests.emulator.machine.schedule import ALL, EAGER, LATE, WATCHED, Schedule
from tests.emulator.races.touched import RaceError
from tests.emulator.snippet import run
from tests.support.emulator.threads import OWN, numbers

ABSENT = 0xFFFFFFFF
"""What shared memory holds before anything comes."""
EVERY = (*ALL, WATCHED)
BEGIN = f"""{OWN}
  .shared .align 8 .b64 mbar; .shared .align 16 .b8 tile[512]; .reg .b32 %bar, %s, %r, %rank; .reg .b64 %from;
  mov.u32 %bar, mbar; mov.u32 %s, tile; mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %p, %tid, 0;
  mad.lo.u32 %r, %tid, 4, %s;
"""
SEEN = "W: mbarrier.try_wait.parity.shared::cta.b64 %q, [%bar], 0; @!%q bra W;"
GIVE = "ld.shared.b32 %y, [%r]; st.global.b32 [%at], %y;"

COPY = f"""{BEGIN}
  ld.param.u64 %from, [p1]; mad.wide.u32 %from, %tid, 4, %from;
  @%p mbarrier.init.shared::cta.b64 [%bar], COUNT; bar.sync 0;
  cp.async.ca.shared.global [%r], [%from], 4;
  ARRIVE SEEN {GIVE}
"""
NOINC = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%bar];"
INC = "cp.async.mbarrier.arrive.shared::cta.b64 [%bar]; mbarrier.arrive.shared::cta.b64 _, [%bar];"


@pytest.mark.parametrize("arrive", [NOINC, INC])
@pytest.mark.parametrize("schedule", EVERY, ids=str)
def test_copies_have_come_when_their_mbarrier_says_so(schedule: Schedule, arrive: str) -> None:
    source, result = np.arange(64, dtype=np.uint32) + 5, numbers(64)
    body = COPY.replace("ARRIVE", arrive).replace("SEEN", SEEN).replace("COUNT", "64")
    done = run(body, [result, source], block=64, schedule=schedule)
    assert result.tolist() == source.tolist()
    assert done.unfinished == ()


@pytest.mark.parametrize("arrive", [NOINC, INC])
def test_an_arrival_behind_copies_is_no_wait_for_them(arrive: str) -> None:
    source, result = np.arange(64, dtype=np.uint32) + 5, numbers(64)
    body = COPY.replace("ARRIVE", arrive).replace("SEEN", "").replace("COUNT", "64")
    done = run(body, [result, source], block=64, schedule=LATE)
    assert result.tolist() == [ABSENT] * 64
    copies, arrivals = done.unfinished
    assert copies.endswith(": 1 cp.async operations of 64 threads were never waited for")
    assert f": {arrive.split(';')[0]}: 1 operations for the mbarrier at 0x400" in arrivals
    with pytest.raises(RaceError, match=r"cp\.async of"):
        run(body, [result, source], block=64, schedule=WATCHED)


def test_arrivals_that_are_awaited_besides_stand_for_no_others() -> None:
    """Without ``.noinc`` each awaits itself, so that those of the threads are all awaited still."""
    body = COPY.replace("ARRIVE", INC).replace("SEEN", SEEN).replace("COUNT", "64")
    only = body.replace("[%bar]; mbarrier.arrive", "[%bar]; @!%p mbarrier.arrive")
    with pytest.raises(FaultError, match="phase 0, 1 of 64 arrivals missing"):
        run(only, [numbers(64), numbers(64)], block=64)


def test_later_copies_are_none_of_an_arrival() -> None:
    """The mbarrier tells the end of the first copy; the second one, of the same group, is waited for on its own."""
    source, result = np.arange(64, dtype=np.uint32) + 5, numbers(64)
    second = "cp.async.ca.shared.global [%r+256], [%from], 4; cp.async.commit_group;"
    body = COPY.replace("ARRIVE", f"{NOINC} {second}").replace("SEEN", SEEN).replace("COUNT", "64")
    run(body, [result, source], block=64, schedule=LATE)
    assert result.tolist() == source.tolist()
    other = body.replace("[%r]; st", "[%r+256]; st")
    run(other, [result, source], block=64, schedule=LATE)
    assert result.tolist() == [ABSENT] * 64
    for group, wanted in ((1, [ABSENT] * 64), (0, source.tolist())):
        waited = other.replace("ld.shared", f"cp.async.wait_group {group}; ld.shared")
        run(waited, [result, source], block=64, schedule=LATE)
        assert result.tolist() == wanted


REMOTE = f"""{BEGIN} .reg .b32 %other, %to, %told;
  xor.b32 %other, %rank, 1; mapa.shared::cluster.u32 %to, %r, %other; mapa.shared::cluster.u32 %told, %bar, %other;
  @%p mbarrier.init.shared::cta.b64 [%bar], 1; @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], BYTES;
  FIRST barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  add.u32 %x, %own, 100; SEND mov.b32 %x, 7;
  SEEN READ barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
STORE = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%to], %x, [%told];"
PAIRS = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%to], {%x, %own}, [%told];"
ADD = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%to], 3, [%told];"
SUMS = {
    "BYTES": "128",
    "FIRST": "st.shared.b32 [%s], 0;",
    "SEND": f"mapa.shared::cluster.u32 %to, %s, %other; {ADD}",
    "READ": "ld.shared.b32 %y, [%s]; st.global.b32 [%at], %y;",
}
STORES = {"BYTES": "128", "FIRST": "", "SEND": STORE, "READ": GIVE}
CROSSED = [132 + i for i in range(32)] + [100 + i for i in range(32)]


def remote(seen: str, **changed: str) -> str:
    body = REMOTE.replace("SEEN", seen)
    for name, text in changed.items():
        body = body.replace(name, text)
    return body


@pytest.mark.parametrize("schedule", EVERY, ids=str)
def test_remote_stores_have_come_when_their_mbarrier_says_so(schedule: Schedule) -> None:
    result = numbers(64)
    done = run(remote(SEEN, **STORES), [result], grid=2, cluster=2, schedule=schedule)
    assert result.tolist() == CROSSED
    assert done.unfinished == ()
    wide = "mad.lo.u32 %r, %tid, 8, %s; mapa.shared::cluster.u32 %to, %r, %other;"
    pairs = {**STORES, "BYTES": "256", "SEND": f"{wide} {PAIRS}"}
    run(remote(SEEN, **pairs), [result], grid=2, cluster=2, schedule=schedule)
    assert result.tolist() == CROSSED


@pytest.mark.parametrize("schedule", EVERY, ids=str)
def test_remote_sums_have_come_when_their_mbarrier_says_so(schedule: Schedule) -> None:
    result = numbers(64)
    done = run(remote(SEEN, **SUMS), [result], grid=2, cluster=2, schedule=schedule)
    assert result.tolist() == [96] * 64
    assert done.unfinished == ()


@pytest.mark.parametrize(("texts", "first"), [(STORES, ABSENT), (SUMS, 0)])
def test_a_barrier_is_no_wait_for_remote_stores(texts: dict[str, str], first: int) -> None:
    barrier = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    result, body = numbers(64), remote(barrier, **texts)
    done = run(body, [result], grid=2, cluster=2, schedule=LATE)
    assert result.tolist() == [first] * 64
    assert len(done.unfinished) == 2  # the mbarriers of two blocks
    assert all(".async." in line and line.startswith("k, PTX line") for line in done.unfinished)
    with pytest.raises(RaceError, match="a load that the mbarrier at"):
        run(body, [result], grid=2, cluster=2, schedule=WATCHED)


def test_a_remote_store_is_within_the_cluster_whenever_it_comes() -> None:
    body = remote("", **{**STORES, "SEND": f"add.u32 %to, %to, 0x4000000; {STORE}"})
    for schedule in (EAGER, LATE):
        with pytest.raises(
            FaultError, match=r"PTX line .*st\.async.*touches 1 bytes at shared address"
        ):
            run(body, [numbers(64)], grid=2, cluster=2, schedule=schedule)


CANCEL = f"""{BEGIN}
  @%p mbarrier.init.shared::cta.b64 [%bar], 1;
  @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 16; bar.sync 0;
  @%p clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%s], [%bar];
  SEEN ld.shared.b32 %y, [%s+12]; st.global.b32 [%at], %y;
"""


def test_an_answer_has_come_when_its_mbarrier_says_so() -> None:
    for schedule in EVERY:
        result = numbers(4 * 32)
        body = CANCEL.replace("SEEN", SEEN)
        run(body, [result], grid=4, schedule=schedule, target="sm_100a")
        assert result.tolist() == [1] * 64 + [0] * 64, schedule
    hasty, result = CANCEL.replace("SEEN", ""), numbers(4 * 32)
    done = run(hasty, [result], grid=4, schedule=LATE, target="sm_100a")
    assert result.tolist() == [ABSENT] * 64 + [0] * 64
    assert all("clusterlaunchcontrol.try_cancel" in line for line in done.unfinished)
    assert len(done.unfinished) == 2
    with pytest.raises(RaceError, match="a load that the mbarrier at"):
        run(hasty, [result], grid=4, schedule=WATCHED, target="sm_100a")
