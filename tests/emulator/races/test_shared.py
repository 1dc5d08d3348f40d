"""Races on shared memory that no schedule has to show: what barriers do not order is found in the first run."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator import snippet
from tests.emulator.machine.schedule import WATCHED
from tests.emulator.races.touched import RaceError

_HEAD = """
  .reg .b32 %r<8>; .reg .b64 %g<4>; .reg .pred %p<4>;
  .shared .align 16 .b8 buffer[1024];
  .shared .align 8 .b64 full;
  mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, buffer; add.u32 %r3, %r2, %r1;
  xor.b32 %r4, %r1, 128; add.u32 %r4, %r2, %r4;
  ld.param.u64 %g0, [p0]; cvt.u64.u32 %g1, %r1; add.u64 %g1, %g0, %g1;
"""
_WRITE = "st.shared.u32 [%r3], %r0;"
_READ_OTHERS = "ld.shared.u32 %r5, [%r4]; st.global.u32 [%g1], %r5;"
_BARRIER = "bar.sync 0;"
_MBARRIER = "setp.eq.u32 %p0, %r0, 0; mov.u32 %r6, full; @%p0 mbarrier.init.shared.b64 [%r6], 1; bar.sync 0;"
_LOAD = (
    "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256;"
    "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%g0], 256, [%r6];"
)


def run(body: str, block: int = 64) -> None:
    snippet.run(_HEAD + body, [np.zeros(256, np.uint32)], block=block, schedule=WATCHED)


def races(body: str, block: int = 64) -> bool:
    try:
        run(body, block)
    except RaceError:
        return True
    return False


def test_another_warps_numbers_are_read_behind_a_barrier() -> None:
    run(_WRITE + _BARRIER + _READ_OTHERS)


def test_without_the_barrier_both_warps_are_named() -> None:
    with pytest.raises(RaceError, match=r"warps [01] reads shared memory that .* warps [01] wrote"):
        run(_WRITE + _READ_OTHERS)


def test_both_accesses_are_named_with_their_lines() -> None:
    """Warp 0 reads and writes; of the two that read before, it is warp 1 whose read has no order with the write."""
    body = """
      .file 1 "two.cu"
      .loc 1 5 1
      ld.shared.u32 %r5, [%r2+8];
      .loc 1 6 1
      ld.shared.u32 %r5, [%r2];
      .loc 1 7 1
      setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [%r2], 7;
    """
    with pytest.raises(RaceError) as caught:
        run(body)
    assert "(two.cu:7): @%p0 st.shared.u32 [%r2], 7 [" in caught.value.place
    assert "warps 0 writes shared memory that block (0, 0, 0) warps 1 reads" in caught.value.reason
    assert caught.value.reason.endswith("(two.cu:6): ld.shared.u32 %r5, [%r2]")


def test_a_copy_that_races_is_named() -> None:
    copy = "cp.async.ca.shared.global [%r3], [%g1], 4; cp.async.commit_group;"
    with pytest.raises(RaceError, match=r"cp\.async of .* wrote: ") as caught:
        run(copy + "ld.shared.u32 %r5, [%r3];")
    assert caught.value.reason.endswith(": cp.async.ca.shared.global [%r3], [%g1], 4")


def test_a_second_write_waits_for_the_readers() -> None:
    again = "add.u32 %r0, %r0, 1;" + _WRITE
    assert races(_WRITE + _BARRIER + _READ_OTHERS + again)
    assert not races(_WRITE + _BARRIER + _READ_OTHERS + _BARRIER + again)


def test_a_warp_is_in_order_with_itself() -> None:
    assert not races(_WRITE + "ld.shared.u32 %r5, [%r3];" + _WRITE)


def test_readers_alone_do_not_race() -> None:
    assert not races("ld.shared.u32 %r5, [%r2]; ld.shared.u32 %r5, [%r2];")


_ATOMIC = "red.shared.add.u32 [%r2], 1;"
_READ_FIRST = "ld.shared.u32 %r5, [%r2];"
_WRITE_FIRST = "setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [%r2], {};"


def test_atomic_operations_do_not_race_with_each_other() -> None:
    assert not races("atom.shared.add.u32 %r5, [%r2], 1;", 128)
    assert not races(_ATOMIC + _ATOMIC + _READ_FIRST, 32)


@pytest.mark.parametrize("plain", [_READ_FIRST, _WRITE_FIRST.format(7)])
@pytest.mark.parametrize("turned", [False, True])
def test_atomic_operations_race_with_reads_and_writes(plain: str, turned: bool) -> None:
    first, then = (plain, _ATOMIC) if turned else (_ATOMIC, plain)
    with pytest.raises(RaceError, match="atomically"):
        run(first + then, 128)
    assert not races(first + _BARRIER + then, 128)


def test_an_atomic_operation_does_not_hide_what_another_one_races_with() -> None:
    """Warp 0 writes and warp 1 waits for it; warp 2 does not."""
    split = "setp.lt.u32 %p1, %r0, 64; @!%p1 bra ATOMIC; {} bar.sync 1, 64; ATOMIC: {}"
    assert races(split.format(_WRITE_FIRST.format(7), _ATOMIC), 96)
    assert not races(split.format("", _ATOMIC), 96)


def test_a_write_of_the_same_value_races_with_an_atomic_operation() -> None:
    same = (
        "setp.lt.u32 %p0, %r0, 32; @!%p0 red.shared.and.b32 [%r2], 0; @%p0 st.shared.u32 [%r2], 0;"
    )
    begin = _WRITE_FIRST.format(0) + _BARRIER
    assert races(begin + same)
    assert not races(begin + same.replace("@%p0 st", _BARRIER + "@%p0 st"))


def test_two_warps_that_write_one_place_race() -> None:
    assert races("st.shared.u32 [%r2], %r0;")
    assert races("shr.u32 %r5, %r0, 5; st.shared.u32 [%r2], %r5;")


def test_two_warps_that_write_the_same_value_do_not() -> None:
    same = "and.b32 %r5, %r0, 31; shl.b32 %r6, %r5, 2; add.u32 %r6, %r2, %r6; st.shared.u32 [%r6], %r5;"
    assert not races(same)
    assert not races(same + "ld.shared.u32 %r7, [%r6];")  # each its own
    assert not races(same + same)


def test_who_writes_another_value_waits_for_all_that_have_written_the_same() -> None:
    same = "st.shared.u32 [%r2], 7;"
    first = "setp.lt.u32 %p0, %r0, 32; @%p0 st.shared.u32 [%r2], 8;"
    assert races(same + first)
    assert not races(same + _BARRIER + first)


def test_who_writes_another_value_waits_for_readers_behind_the_same_value() -> None:
    body = "st.shared.u32 [%r2], 7; BARRIER ld.shared.u32 %r5, [%r2]; setp.lt.u32 %p0, %r0, 32; @%p0 st.shared.u32 [%r2], VALUE;"
    body = body.replace("BARRIER", _BARRIER)
    assert races(body.replace("VALUE", "8"))
    assert not races(body.replace("VALUE", "7"))


@pytest.mark.parametrize("kind", ["u8", "u16"])
def test_two_warps_write_the_same_small_value(kind: str) -> None:
    assert not races(f"st.shared.{kind} [%r2], 3;")
    assert races(f"shr.u32 %r5, %r0, 5; st.shared.{kind} [%r2], %r5;")


def test_an_arrival_orders_what_lies_before_it() -> None:
    split = "setp.lt.u32 %p0, %r0, 32; @!%p0 bra READ; {write} bar.arrive 1, 64; bra END; READ: bar.sync 1, 64; {read} END: "
    body = split.format(write=_WRITE, read=_READ_OTHERS)
    assert not races(body)
    assert races(body.replace(f"{_WRITE} bar.arrive 1, 64;", f"bar.arrive 1, 64; {_WRITE}"))


def test_copies_are_waited_for() -> None:
    copy = "cp.async.ca.shared.global [%r3], [%g1], 4; cp.async.commit_group;"
    own, others = "ld.shared.u32 %r5, [%r3];", "ld.shared.u32 %r5, [%r4];"
    wait = "cp.async.wait_group 0;"
    assert races(copy + own)
    assert not races(copy + wait + own)
    assert races(copy + wait + others)
    assert not races(copy + wait + _BARRIER + others)
    assert races(copy + _BARRIER + wait + others)


def test_a_wait_for_all_copies_waits_for_those_of_no_group_too() -> None:
    read = "ld.shared.u32 %r5, [%r3];"
    assert races(_COPY + "cp.async.wait_group 0;" + read)
    assert not races(_COPY + "cp.async.wait_all;" + read)
    assert races(_COPY + "cp.async.wait_all;" + _COPY + read)


_COUNTS = "setp.eq.u32 %p0, %r0, 0; mov.u32 %r6, full; @%p0 mbarrier.init.shared.b64 [%r6], 64; bar.sync 0;"
_COPY = "cp.async.ca.shared.global [%r3], [%g1], 4;"
_ARRIVE = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r6];"
_SEEN = "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r6], 0; @!%p1 bra W;"


def test_who_arrives_behind_its_copies_knows_of_them_by_the_mbarrier_alone() -> None:
    own, others = "ld.shared.u32 %r5, [%r3];", "ld.shared.u32 %r5, [%r4];"
    assert races(_COUNTS + _COPY + _ARRIVE + own)
    assert not races(_COUNTS + _COPY + _ARRIVE + _SEEN + own)
    assert not races(_COUNTS + _COPY + _ARRIVE + _SEEN + others)
    late = "cp.async.ca.shared.global [%r3+512], [%g1], 4;"
    assert not races(_COUNTS + _COPY + _ARRIVE + late + _SEEN + own)
    assert races(_COUNTS + _COPY + _ARRIVE + late + _SEEN + "ld.shared.u32 %r5, [%r3+512];")
    wait = "cp.async.commit_group; cp.async.wait_group 0;"
    assert not races(_COUNTS + _COPY + _ARRIVE + late + wait + "ld.shared.u32 %r5, [%r3+512];")


def test_a_load_is_over_when_its_mbarrier_has_been_seen() -> None:
    wait = "W{n}: mbarrier.try_wait.parity.shared.b64 %p1, [%r6], {parity}; @!%p1 bra W{n};"
    seen = wait.format(n=0, parity=0)
    read = "ld.shared.u32 %r5, [%r3];"
    assert races(_MBARRIER + _LOAD + read)
    assert not races(_MBARRIER + _LOAD + seen + read)
    again = _LOAD + wait.format(n=1, parity=1) + read
    assert races(_MBARRIER + _LOAD + seen + read + again)
    assert not races(_MBARRIER + _LOAD + seen + read + _BARRIER + again)


def test_a_load_orders_what_its_warp_wrote_before_it_alone() -> None:
    write = "@%p0 st.shared.u32 [%r2+512], 7;"
    rest = "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r6], 0; @!%p1 bra W; ld.shared.u32 %r5, [%r2+512];"
    assert not races(_MBARRIER + write + _LOAD + rest)
    assert races(_MBARRIER + _LOAD + write + rest)


def test_a_buffer_of_a_bulk_store_is_free_when_it_has_been_waited_for() -> None:
    store = (
        "setp.eq.u32 %p0, %r0, 0; fence.proxy.async;"
        "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%g0], [%r2], 256; cp.async.bulk.commit_group;"
    )
    wait = "cp.async.bulk.wait_group.read 0;"
    assert races(store + _WRITE)
    assert not races(store + wait + _BARRIER + _WRITE)
    assert races(store + _BARRIER + wait + _WRITE)


_HANDED = (
    "mov.u32 %r6, full; setp.eq.u32 %p0, %r0, 0; {init} @%p0 st.shared.u32 [%r2], 7; setp.lt.u32 %p2, %r0, 32; {before}"
    "@%p0 mbarrier.arrive{release}.cta.shared::cta.b64 _, [%r6]; @%p2 bra END;"
    "W: mbarrier.try_wait.parity{acquire}.cta.shared::cta.b64 %p1, [%r6], 0; @!%p1 bra W; {behind} ld.shared.u32 %r5, [%r2]; END:"
)
"""Thread 0 writes and arrives at an mbarrier, which the second warp waits for; it then reads."""
_MEMORY_FENCE = "fence.acq_rel.cta;"


def handed(release: str, acquire: str, before: str = "", behind: str = "") -> str:
    init = "@%p0 mbarrier.init.shared.b64 [%r6], 1; bar.sync 0;"
    orders = {"release": f".{release}", "acquire": f".{acquire}"}
    return _HANDED.format(init=init, before=before, behind=behind, **orders)


def test_an_arrival_and_a_wait_hand_over_by_their_order() -> None:
    assert not races(handed("release", "acquire"))
    assert races(handed("relaxed", "acquire"))
    assert races(handed("release", "relaxed"))


@pytest.mark.parametrize("fence", [_MEMORY_FENCE, "fence.sc.cta;", "membar.cta;", "fence.cta;"])
def test_what_is_relaxed_hands_over_with_a_fence(fence: str) -> None:
    assert not races(handed("relaxed", "acquire", before=fence))
    assert not races(handed("release", "relaxed", behind=fence))
    assert not races(handed("relaxed", "relaxed", fence, fence))


def test_a_fence_may_acquire_or_release_alone() -> None:
    release, acquire = "fence.release.cta;", "fence.acquire.cta;"
    assert not races(handed("relaxed", "relaxed", release, acquire))
    assert races(handed("relaxed", "relaxed", acquire, acquire))
    assert races(handed("relaxed", "relaxed", release, release))


def test_a_later_fence_releases_what_lies_between() -> None:
    later = "@%p0 st.shared.u32 [%r2], 8;"
    again = f"{_MEMORY_FENCE} {later} {_MEMORY_FENCE}"
    assert not races(handed("relaxed", "acquire", again))
    assert races(handed("relaxed", "acquire", f"{_MEMORY_FENCE} {later}"))


@pytest.mark.parametrize("fence", ["fence.mbarrier_init.release.cluster;", "fence.proxy.async;"])
def test_fences_of_other_kinds_hand_over_nothing_else(fence: str) -> None:
    assert races(handed("relaxed", "acquire", before=fence))
    assert races(handed("release", "relaxed", behind=fence))


def test_bytes_that_a_thread_gives_up_hand_over_nothing() -> None:
    """``mbarrier.complete_tx`` is relaxed."""
    given = handed("release", "acquire").replace("@%p2 bra", "{} @%p2 bra")
    parts = ("expect_tx", "complete_tx")
    expect, complete = (
        f"@%p0 mbarrier.{part}.relaxed.cta.shared::cta.b64 [%r6], 8;" for part in parts
    )
    write = "@%p0 st.shared.u32 [%r2+4], 7;"
    read = given.replace("[%r2]; END", "[%r2+4]; END")
    early = read.replace("@%p0 mbarrier.arrive", f"{expect} @%p0 mbarrier.arrive")
    assert races(early.format(write + complete))
    assert not races(early.format(complete).replace("@%p0 st", write + "@%p0 st", 1))


_INITS = (
    "mov.u32 %r6, full; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [%r2], 7; @%p0 mbarrier.init.shared.b64 [%r6], 1; {fence}"
    "barrier.cluster.arrive{release}.aligned; barrier.cluster.wait.aligned; {then}"
)
_INIT_FENCE = "fence.mbarrier_init.release.cluster;"


@pytest.mark.parametrize("fence", [_INIT_FENCE, "fence.acq_rel.cluster;"])
def test_an_mbarrier_has_a_fence_before_an_arrival_that_is_relaxed(fence: str) -> None:
    """As CUTLASS begins its kernels: ``fence_barrier_init``, ``cluster_arrive_relaxed``."""
    assert not races(_INITS.format(fence="", release=".release", then=_PHASE))
    assert races(_INITS.format(fence="", release=".relaxed", then=_PHASE))
    assert not races(_INITS.format(fence=fence, release=".relaxed", then=_PHASE))


_INIT = "mov.u32 %r6, full; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p2, %r0, 32; @%p0 mbarrier.init.shared.b64 [%r6], 1;"


@pytest.mark.parametrize(
    "use",
    [
        "mbarrier.arrive.shared.b64 _, [%r6];",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r6], 8;",
        "mbarrier.try_wait.parity.shared.b64 %p1, [%r6], 0;",
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r6];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%g0], 256, [%r6];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r2], %r0, [%r6];",
    ],
    ids=lambda use: use.partition(" ")[0],
)
def test_what_uses_an_mbarrier_lies_behind_its_beginning(use: str) -> None:
    with pytest.raises(RaceError, match=r"warps 1 uses the mbarrier at .* an mbarrier\.init of"):
        run(f"{_INIT} @%p2 {use}")
    run(f"{_INIT} {_BARRIER} @%p2 {use}")


def test_a_fence_of_mbarriers_orders_no_store() -> None:
    text = {"release": ".relaxed", "then": "ld.shared.u32 %r5, [%r2];"}
    assert races(_INITS.format(fence=_INIT_FENCE, **text))
    assert not races(_INITS.format(fence="fence.acq_rel.cluster;", **text))


_PHASE = """
  @%p0 mbarrier.arrive.shared.b64 _, [%r6];
WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r6], 0; @!%p1 bra WAIT;
"""
_END = "@%p0 mbarrier.inval.shared.b64 [%r6];"


def test_an_mbarrier_ends_behind_those_that_have_seen_its_phase() -> None:
    run(_MBARRIER + _PHASE + _BARRIER + _END)
    with pytest.raises(RaceError, match=r"warps 0 ends the mbarrier at .* warps 1 uses") as caught:
        run(_MBARRIER + _PHASE + _END)
    assert "mbarrier.inval" in str(caught.value)
    assert "mbarrier.try_wait" in str(caught.value)


def test_a_warp_ends_an_mbarrier_that_it_alone_has_waited_for() -> None:
    run(_MBARRIER + _PHASE + _END, block=32)


def test_an_mbarrier_ends_behind_arrivals_and_behind_its_beginning() -> None:
    init = _INIT.replace("1;", "2;")
    arrive = "@%p2 mbarrier.arrive.shared.b64 _, [%r6];"
    with pytest.raises(RaceError, match="ends the mbarrier"):
        run(f"{init} {_BARRIER} {arrive} {_END}")
    run(f"{init} {_BARRIER} {arrive} {_BARRIER} {_END}")
    of_other = _END.replace("%p0", "%p2")
    assert races(_INIT + of_other)
    assert not races(_INIT + _BARRIER + of_other)


def test_the_memory_of_an_mbarrier_is_written_behind_its_end() -> None:
    """The second warp writes there, and has to know of the end."""
    write = "setp.eq.u32 %p2, %r0, 32; @%p2 st.shared.u32 [%r6], 7;"
    assert races(_MBARRIER + _PHASE + _BARRIER + _END + write)
    assert not races(_MBARRIER + _PHASE + _BARRIER + _END + _BARRIER + write)


def test_an_mbarrier_begins_in_memory_that_nobody_uses() -> None:
    """The other warp reads what is there, and then waits for the first phase."""
    begin = "setp.eq.u32 %p0, %r0, 0; mov.u32 %r6, full; @%p0 mbarrier.init.shared.b64 [%r6], 1;"
    read = "mov.u32 %r7, full; ld.shared.u32 %r5, [%r7];"
    assert races(read + begin)
    assert not races(read + _BARRIER + begin)
    assert not races(begin + _BARRIER + _PHASE)
