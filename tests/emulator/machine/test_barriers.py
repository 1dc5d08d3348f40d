"""Barriers of blocks and clusters."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import DeadlockError, FaultError
from tests.emulator.machine.schedule import ALL, Schedule
from tests.emulator.snippet import run
from tests.support.emulator.threads import OWN, numbers


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_who_arrives_does_not_wait(schedule: Schedule) -> None:
    """Warps 0 and 1 write, arrive and go on; warps 2 and 3 wait and read."""
    result = numbers(128)
    body = f"""{OWN}
      .shared .align 4 .b8 tile[256]; .reg .b32 %s;
      mov.u32 %s, tile; and.b32 %x, %tid, 63; mad.lo.u32 %s, %x, 4, %s; setp.gt.u32 %p, %tid, 63;
      @%p bra READ;
      st.shared.b32 [%s], %tid; bar.arrive 3, 128; bra DONE;
    READ: bar.sync 3, 128; ld.shared.b32 %y, [%s]; st.global.b32 [%at], %y;
    DONE:
    """
    run(body, [result], block=128, schedule=schedule)
    assert result.tolist() == [0] * 64 + list(range(64))


@pytest.mark.parametrize(("name", "wanted"), [("popc.u32", 40), ("and.pred", 0), ("or.pred", 1)])
def test_a_barrier_reduces(name: str, wanted: int) -> None:
    result = numbers(64)
    target, after = ("%y", "") if "popc" in name else ("%q", "selp.u32 %y, 1, 0, %q;")
    body = f"{OWN} setp.lt.u32 %p, %tid, 40; bar.red.{name} {target}, 0, %p; {after} st.global.b32 [%at], %y;"
    run(body, [result], block=64)
    assert result.tolist() == [wanted] * 64


def test_more_threads_than_a_barrier_is_for_are_a_fault() -> None:
    body = f"{OWN} setp.gt.u32 %p, %tid, 31; @%p bar.arrive 1, 64; @%p bar.arrive 1, 64;"
    with pytest.raises(FaultError, match="96 threads at barrier 1, which is for 64"):
        run(body, [numbers(128)], block=128)


HALF = "and.b32 %x, %tid, 31; setp.lt.u32 %p, %x, 16;"
ARMS = f"{HALF} @%p bra A; {{0}} bra END; A: {{0}} END: st.global.b32 [%at], 1;"


@pytest.mark.parametrize(
    "text",
    [
        f"{HALF} @%p bar.sync 1, 64;",
        f"{HALF} @%p bra A; bra END; A: bar.sync 1, 64; END: bar.warp.sync -1;",
        ARMS.format("bar.sync 0;"),
        ARMS.format("barrier.sync.aligned 0;"),
        ARMS.format("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
    ],
)
def test_an_aligned_barrier_is_for_whole_warps(text: str) -> None:
    with pytest.raises(FaultError, match=r"PTX line .*not all lanes of a warp are here"):
        run(f"{OWN} {text}", [numbers(128)], block=128)


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_a_barrier_that_is_not_aligned_takes_lanes_of_a_warp_apart(schedule: Schedule) -> None:
    result = numbers(128)
    run(f"{OWN} {ARMS.format('barrier.sync 0;')}", [result], block=128, schedule=schedule)
    assert result.tolist() == [1] * 128
    half = f"{HALF} @%p bra A; bra END; A: barrier.sync 1, 64; END: L: @!%p bra L;"
    with pytest.raises(DeadlockError, match=r"barrier 1 (.|\n)*0 of 64 threads have arrived"):
        run(f"{OWN} {half}", [result], block=128, schedule=schedule, limit_s=0.3)


def test_lanes_that_have_ended_count_with_their_warp() -> None:
    result = numbers(128)
    body = f"{HALF} @%p exit; bar.sync 1, 64; st.global.b32 [%at], 1;"
    run(f"{OWN} {body}", [result], block=64)
    assert result.tolist() == ([0] * 16 + [1] * 16) * 2 + [0] * 64
    result[:] = 0
    run(f"{OWN} bar.sync 1, 64; bar.sync 0; st.global.b32 [%at], 1;", [result], block=48)
    assert result.tolist() == [1] * 48 + [0] * 80


CLUSTER = f"""{OWN}
  .shared .align 4 .b8 tile[4]; .reg .b32 %rank, %other, %s, %r;
  mov.u32 %rank, %cluster_ctarank; xor.b32 %other, %rank, 1; mov.u32 %s, tile;
  mapa.shared::cluster.u32 %r, %s, %other;
  mov.u32 %x, %ctaid.x; setp.eq.u32 %p, %tid, 0;
  @%p st.shared::cluster.b32 [%r], %x;
  barrier.cluster.arrive.aligned; WAIT
  ld.shared.b32 %y, [%s]; st.global.b32 [%at], %y;
"""


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_blocks_of_a_cluster_write_to_each_other(schedule: Schedule) -> None:
    result = numbers(4 * 64)
    body = CLUSTER.replace("WAIT", "barrier.cluster.wait.aligned;")
    run(body, [result], block=64, grid=4, cluster=2, schedule=schedule)
    assert result.reshape(4, 64)[:, 0].tolist() == [1, 0, 3, 2]
    assert (result.reshape(4, 64) == result.reshape(4, 64)[:, :1]).all()


def test_a_cluster_that_does_not_wait_is_wrong_in_some_schedule() -> None:
    wrong = 0
    for schedule in ALL:
        result = numbers(4 * 64)
        run(CLUSTER.replace("WAIT", ""), [result], block=64, grid=4, cluster=2, schedule=schedule)
        wrong += not np.array_equal(result.reshape(4, 64)[:, 40], [1, 0, 3, 2])
    assert wrong


def test_a_cluster_barrier_without_all_names_itself() -> None:
    body = f"{OWN} setp.eq.u32 %p, %tid, 0; @!%p barrier.cluster.arrive; @!%p barrier.cluster.wait; L: @%p bra L;"
    with pytest.raises(DeadlockError, match=r"the barrier of cluster 0 (.|\n)*62 of 64 threads"):
        run(body, [numbers(64)], block=32, grid=2, cluster=2, limit_s=0.3)


ARRIVE, AWAIT = "barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (AWAIT, "waits, and has not arrived"),
        (ARRIVE + AWAIT + AWAIT, "waits, and has not arrived"),
        (ARRIVE + ARRIVE, "arrives twice"),
        (ARRIVE + AWAIT + ARRIVE + ARRIVE, "arrives twice"),
    ],
)
@pytest.mark.parametrize("cluster", [1, 2])
def test_each_thread_arrives_once_before_each_wait(text: str, reason: str, cluster: int) -> None:
    run(f"{OWN} {ARRIVE} {AWAIT} {ARRIVE}", [numbers(64)], grid=2, cluster=cluster)
    with pytest.raises(FaultError, match=rf"PTX line .*thread \(0, 0, 0\) {reason}"):
        run(f"{OWN} {text}", [numbers(64)], grid=2, cluster=cluster)
