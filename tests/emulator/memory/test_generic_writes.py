"""What threads have written to shared memory, and the proxy fence between that and what reads it through the async proxy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import FaultError
from tests.emulator.machine.schedule import ALL, EAGER, WATCHED, Schedule
from tests.emulator.snippet import run
from tests.support.emulator.threads import OWN

_STORE = "@%p cp.async.bulk.global.shared::cta.bulk_group [%out], [tile], 256; cp.async.bulk.commit_group;"
WRITES = {
    "a store": "st.shared.b32 [%s], %tid;",
    "an atomic operation": "atom.shared.exch.b32 %y, [%s], %tid;",
    "a reduction": "red.shared.add.u32 [%s], 1;",
    "cp.async": "cp.async.ca.shared.global [%s], [%at], 4; cp.async.wait_all;",
}


def fenced(write: str, fence: str, then: str = "", schedule: Schedule = EAGER) -> None:
    """Run a block that writes to shared memory, has a fence, ``then`` behind a barrier, and stores that memory by a bulk copy."""
    body = f"""{OWN} .reg .b32 %s; .reg .pred %none; .shared .align 16 .b8 tile[256];
      mov.u32 %s, tile; mad.lo.u32 %s, %tid, 4, %s; setp.eq.u32 %p, %tid, 0; setp.gt.u32 %none, %tid, 64;
      {WRITES[write]} {fence} bar.sync 0; {then} {_STORE}
    """
    run(body, [np.zeros(64, np.uint32)], block=64, schedule=schedule)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("fence", ["fence.proxy.async.shared::cta;", "@%p fence.proxy.async;"])
def test_unwatched_a_fence_of_any_thread_counts_for_its_block(write: str, fence: str) -> None:
    fenced(write, fence)


_FENCE = "fence.proxy.async.shared::cta;"
_OF_FIRST_WARP = "setp.lt.u32 %q, %tid, 32; @%q fence.proxy.async;"
_OF_SECOND_WARP = _OF_FIRST_WARP.replace("setp.lt", "setp.ge")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("fence", "then"), [(_FENCE, ""), ("", "@%p fence.proxy.async;"), (_OF_FIRST_WARP, _FENCE)]
)
def test_watched_a_fence_counts_for_what_lies_before_it(write: str, fence: str, then: str) -> None:
    """By the threads that write, or by those that read behind a barrier."""
    fenced(write, fence, then, WATCHED)


@pytest.mark.parametrize("write", WRITES)
def test_watched_a_fence_counts_for_no_other_warp(write: str) -> None:
    with pytest.raises(FaultError, match=r"warps 1 has written, and there is no fence") as caught:
        fenced(write, _OF_FIRST_WARP, "", WATCHED)
    assert "a bulk store of block (0, 0, 0) warps 0 reads" in caught.value.reason
    assert caught.value.reason.endswith(WRITES[write].partition(";")[0])


def test_watched_a_fence_has_to_lie_before_what_reads() -> None:
    """Warp 1 waits for both warps and has a fence; nothing orders that with the store of warp 0."""
    with pytest.raises(FaultError, match=r"there is no fence\.proxy\.async since"):
        fenced("a store", "", _OF_SECOND_WARP, WATCHED)
    fenced("a store", "", f"{_OF_SECOND_WARP} bar.sync 0;", WATCHED)


@pytest.mark.parametrize("schedule", [*ALL, WATCHED], ids=str)
def test_a_writer_s_fence_counts_for_the_memory_of_another_block(schedule: Schedule) -> None:
    body = f"""{OWN} .reg .b32 %s; .shared .align 16 .b8 tile[256];
      mov.u32 %s, tile; mad.lo.u32 %s, %tid, 4, %s; xor.b32 %s, %s, 0x1000000; setp.eq.u32 %p, %tid, 0;
      st.shared::cluster.b32 [%s], %tid; FENCE
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; {_STORE} @%p cp.async.bulk.wait_group 0;
    """
    result = np.zeros(64, np.uint32)
    facts = {"block": 64, "grid": 2, "cluster": 2, "schedule": schedule}
    run(body.replace("FENCE", "fence.proxy.async;"), [result], **facts)  # pyright: ignore[reportArgumentType]
    assert np.array_equal(result, np.arange(64))
    with pytest.raises(FaultError, match="there is no fence"):
        run(body.replace("FENCE", ""), [result], **facts)  # pyright: ignore[reportArgumentType]


def test_watched_an_mbarrier_hands_on_a_fence() -> None:
    """Warp 1 writes, has a fence and arrives; warp 0 waits and stores."""
    body = f"""{OWN} .reg .b32 %s; .reg .pred %done; .shared .align 16 .b8 tile[256]; .shared .align 8 .b64 bar;
      mov.u32 %s, tile; mad.lo.u32 %s, %tid, 4, %s; setp.eq.u32 %p, %tid, 0; setp.ge.u32 %q, %tid, 32;
      @%p mbarrier.init.shared::cta.b64 [bar], 32; bar.sync 0;
      @%q st.shared.b32 [%s], %tid; FENCE @%q mbarrier.arrive.shared::cta.b64 _, [bar];
      @%q bra END; W: mbarrier.try_wait.parity.shared::cta.b64 %done, [bar], 0; @!%done bra W;
      {_STORE} @%p cp.async.bulk.wait_group 0; END:
    """
    run(
        body.replace("FENCE", "@%q fence.proxy.async;"),
        [np.zeros(64, np.uint32)],
        block=64,
        schedule=WATCHED,
    )
    with pytest.raises(FaultError, match="there is no fence"):
        run(body.replace("FENCE", ""), [np.zeros(64, np.uint32)], block=64, schedule=WATCHED)


def test_watched_a_fence_of_any_that_wrote_the_same_value_counts() -> None:
    """As Triton's warps do that have copies of a value."""
    same = f"and.b32 %x, %tid, 31; mov.u32 %s, tile; mad.lo.u32 %s, %x, 4, %s; st.shared.b32 [%s], %x; {_OF_FIRST_WARP}"
    fenced("a store", _FENCE, same, WATCHED)


def test_watched_a_fence_counts_for_no_later_write() -> None:
    """Both warps write again, and the second one has a fence again."""
    later = f"{_FENCE} add.u32 %x, %tid, 1; st.shared.b32 [%s], %x; {{}} bar.sync 0;"
    with pytest.raises(FaultError, match=r"warps 0 has written, and there is no fence"):
        fenced("a store", "", later.format(_OF_SECOND_WARP), WATCHED)
    fenced("a store", "", later.format(_FENCE), WATCHED)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "fence", ["", "@%none fence.proxy.async;", "fence.proxy.async.global;", "fence.acq_rel.cta;"]
)
def test_without_a_fence_that_runs_it_is_a_fault(write: str, fence: str) -> None:
    with pytest.raises(FaultError, match=r"there is no fence\.proxy\.async since"):
        fenced(write, fence)
