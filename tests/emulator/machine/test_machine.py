"""Branches, groups and the reports of what goes wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import CudaError, DeadlockError, FaultError
from tests.emulator.machine.schedule import ALL, EAGER, LATE, Schedule
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import evaluate, run
from tests.support.emulator.threads import OWN, numbers

EVERY = (*ALL, Schedule(ahead="random", seed=1), Schedule(late=True, ahead="random", seed=2))


@pytest.mark.parametrize("schedule", EVERY, ids=str)
def test_lanes_branch_apart_and_meet_again(schedule: Schedule) -> None:
    """A loop with as many turns as each lane has, and a branch in it."""
    result = numbers(96)
    body = f"""{OWN}
      .reg .b32 %i, %sum; mov.u32 %i, 0; mov.u32 %sum, 0;
    LOOP:
      setp.ge.u32 %p, %i, %tid; @%p bra DONE;
      and.b32 %x, %i, 1; setp.eq.u32 %q, %x, 0; @%q bra EVEN;
      add.u32 %sum, %sum, 100; bra NEXT;
    EVEN: add.u32 %sum, %sum, 1;
    NEXT: add.u32 %i, %i, 1; bra LOOP;
    DONE: st.global.b32 [%at], %sum;
    """
    run(body, [result], block=48, grid=2, schedule=schedule)
    wanted = [(t + 1) // 2 + t // 2 * 100 for t in range(48)] * 2
    assert result.tolist() == wanted


def test_lanes_that_meet_run_together_again() -> None:
    result = numbers(32)
    body = f"""{OWN}
      setp.lt.u32 %p, %tid, 7; @%p bra LOW; mov.u32 %x, 5; bra MEET;
    LOW: mov.u32 %x, 9;
    MEET: vote.sync.ballot.b32 %y, %p, -1;
      shfl.sync.idx.b32 %x, %x, 0, 31, -1; add.u32 %x, %x, %y; st.global.b32 [%at], %x;
    """
    run(body, [result])
    assert result.tolist() == [9 + 0x7F] * 32


def test_a_table_of_branches() -> None:
    (got,) = evaluate(
        """
        .reg .b32 %i; .reg .pred %big; and.b32 %i, %a, 3; mov.u32 %d, 1000;
        setp.gt.u32 %big, %i, 2; @%big bra E;
        T: .branchtargets A, B, C;
        brx.idx %i, T;
        A: mov.u32 %d, 10; bra E;
        B: mov.u32 %d, 20; bra E;
        C: mov.u32 %d, 30;
        E: """,
        {"%a": ("b32", np.arange(8, dtype=np.uint32))},
        {"%d": "b32"},
    )
    assert got.tolist() == [10, 20, 30, 1000] * 2


def test_an_early_end_releases_barriers() -> None:
    result = numbers(128)
    body = f"{OWN} setp.gt.u32 %p, %tid, 63; @%p exit; bar.sync 0; st.global.b32 [%at], 1;"
    run(body, [result], block=128)
    assert result.tolist() == [1] * 64 + [0] * 64


REVERSE = f"""{OWN}
  .shared .align 4 .b8 tile[512]; .reg .b32 %s, %r;
  mov.u32 %s, tile; mad.lo.u32 %r, %tid, 4, %s; st.shared.b32 [%r], %tid;
  BARRIER
  sub.u32 %x, 127, %tid; mad.lo.u32 %r, %x, 4, %s; ld.shared.b32 %y, [%r]; st.global.b32 [%at], %y;
"""


@pytest.mark.parametrize("schedule", EVERY, ids=str)
def test_a_barrier_keeps_warps_in_order(schedule: Schedule) -> None:
    result = numbers(128)
    run(REVERSE.replace("BARRIER", "bar.sync 0;"), [result], block=128, schedule=schedule)
    assert result.tolist() == list(range(127, -1, -1))


def test_a_missing_barrier_shows_where_warps_run_one_by_one() -> None:
    broken = REVERSE.replace("BARRIER", "bar.warp.sync -1;")
    wrong: list[str] = []
    for schedule in EVERY:
        result = numbers(128)
        run(broken, [result], block=128, schedule=schedule)
        if result.tolist() != list(range(127, -1, -1)):
            wrong.append(str(schedule))
    assert wrong == [str(schedule) for schedule in EVERY if schedule.by_warp]


def test_a_spin_on_memory_lets_others_run() -> None:
    """The first block waits for what the second one writes."""
    result, flag = numbers(64), numbers(1)
    body = f"""{OWN}
      .reg .b64 %f; ld.param.u64 %f, [p1]; mov.u32 %x, %ctaid.x; setp.eq.u32 %p, %x, 1; @%p bra WRITE;
    SPIN: ld.acquire.gpu.global.b32 %y, [%f]; setp.eq.u32 %q, %y, 0; @%q bra SPIN; bra DONE;
    WRITE: mov.u32 %y, 7; st.release.gpu.global.b32 [%f], %y;
    DONE: st.global.b32 [%at], %y;
    """
    run(body, [result, flag], grid=2)
    assert result.tolist() == [7] * 64


def test_a_deadlock_names_its_barrier_and_who_is_missing() -> None:
    body = f"{OWN} setp.gt.u32 %p, %tid, 95; @%p bar.sync 1, 64; @!%p bar.sync 2, 128; exit;"
    with pytest.raises(DeadlockError) as caught:
        run(body, [numbers(128)], block=128)
    text = str(caught.value)
    assert "barrier 1 (@%p bar.sync 1, 64 at PTX line" in text
    assert "32 of 64 threads have arrived, block (0, 0, 0) warps 3 wait" in text
    assert "barrier 2" in text
    assert "96 of 128 threads have arrived, block (0, 0, 0) warps 0-2 wait" in text
    assert caught.value.error == CudaError.LAUNCH_TIMEOUT


def test_an_endless_loop_ends() -> None:
    with pytest.raises(DeadlockError, match=r"not finished within 0\.2 s(.|\n)*no barrier: block"):
        run("L: bra L;", [numbers(1)], limit_s=0.2)


def test_a_fault_names_kernel_line_source_and_thread() -> None:
    body = f"""{OWN}
      .file 1 "some/where/kernel.cu"
      setp.eq.u32 %p, %tid, 5;
      .loc 1 42 7
      @%p add.u64 %at, %at, 4096;
      st.global.b32 [%at], %tid;
    """
    with pytest.raises(FaultError) as caught:
        run(body, [numbers(32)])
    text = str(caught.value)
    line = next(i for i, x in enumerate(("\n" * 6 + body).split("\n"), 1) if "st.global.b32" in x)
    assert f"k, PTX line {line} (kernel.cu:42): st.global.b32 [%at], %tid" in text
    assert "block (0, 0, 0) thread (5, 0, 0) touches 4 bytes at global address" in text
    assert "in no operand" in text
    assert caught.value.error == CudaError.ILLEGAL_ADDRESS


@pytest.mark.parametrize(
    ("text", "reason", "error"),
    [
        (
            "add.u64 %at, %at, 2; st.global.b32 [%at], %x;",
            "no multiple of 4",
            CudaError.MISALIGNED_ADDRESS,
        ),
        (
            "mov.u32 %x, 1048576; ld.shared.b32 %y, [%x];",
            "outside of the block's",
            CudaError.ILLEGAL_ADDRESS,
        ),
        (
            "ld.shared.b32 %y, [%x];",
            "outside of the block's own, 0x400 to",
            CudaError.ILLEGAL_ADDRESS,
        ),
        ("st.shared.b32 [%x+1020], %y;", "outside of the block's", CudaError.ILLEGAL_ADDRESS),
        ("ld.local.b32 %y, [4096];", "outside of the thread's", CudaError.ILLEGAL_ADDRESS),
        ("trap;", "runs trap", CudaError.LAUNCH_FAILURE),
        ("bar.sync 17;", "barrier 17; a block has 16", CudaError.LAUNCH_FAILURE),
        ("bar.sync 1, 20;", "no multiple of a warp", CudaError.LAUNCH_FAILURE),
        (
            "call.uni (%x), __assertfail, (%y);",
            "an assertion of block (0, 0, 0) thread (0, 0, 0) failed",
            CudaError.ASSERT,
        ),
        ("call.uni (%x), other, (%y);", "calls a device function", CudaError.NOT_SUPPORTED),
    ],
)
def test_what_no_gpu_allows_is_a_fault(text: str, reason: str, error: CudaError) -> None:
    with pytest.raises(FaultError) as caught:
        run(f"{OWN} mov.u32 %x, 0; {text}", [numbers(32)])
    assert reason in str(caught.value)
    assert "PTX line" in str(caught.value)
    assert caught.value.error == error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("frobnicate.b32 %x, %y;", "opcode frobnicate.b32 is not known"),
        ("mul.rz.f32 %x, %y, %y;", "opcode mul.rz.f32: .rz is not known"),
        ("tcgen05.shift.cta_group::1.down [%x];", "opcode tcgen05.shift.cta_group::1.down"),
        ("mov.u32 %x, %nothing;", "%nothing is not known"),
        ("mov.u32 %x, nothing;", "there is no variable nothing"),
    ],
)
def test_what_is_not_known_is_an_error_that_names_it(text: str, reason: str) -> None:
    with pytest.raises((PtxError, FaultError)) as caught:
        run(f"{OWN}\n{text}", [numbers(32)])
    assert reason in str(caught.value)
    assert "PTX line 12" in str(caught.value)


def test_loads_come_late_in_a_late_schedule() -> None:
    """Without its wait, cp.async has not come when the value is read."""
    source, result = np.arange(4, dtype=np.uint32), numbers(32)
    body = f"""{OWN}
      .shared .align 16 .b8 tile[16]; .reg .b64 %from; .reg .b32 %s;
      mov.u32 %s, tile; ld.param.u64 %from, [p1]; setp.eq.u32 %p, %tid, 0;
      @%p cp.async.cg.shared.global [%s], [%from], 16;
      cp.async.commit_group; WAIT
      bar.sync 0; ld.shared.b32 %y, [%s+12]; st.global.b32 [%at], %y;
    """
    for schedule in (EAGER, LATE):
        run(body.replace("WAIT", "cp.async.wait_group 0;"), [result, source], schedule=schedule)
        assert result.tolist() == [3] * 32
    done = run(body.replace("WAIT", ""), [result, source], schedule=LATE)
    assert result.tolist() == [0xFFFFFFFF] * 32
    (left,) = done.unfinished
    assert left.startswith("k, PTX line ")
    assert left.endswith(
        ": @%p cp.async.cg.shared.global [%s], [%from], 16: 1 cp.async operations of 1 threads were never waited for"
    )


def test_a_late_copy_goes_where_it_was_sent() -> None:
    """Its registers have other values by the time it is done."""
    source, result = np.arange(4, dtype=np.uint32), numbers(1)
    body = """
      .shared .align 16 .b8 tile[32]; .reg .b64 %from, %to; .reg .b32 %s, %y;
      mov.u32 %s, tile; ld.param.u64 %from, [p1]; bra.uni COPY;
      COPY: cp.async.cg.shared.global [%s], [%from], 16; cp.async.commit_group;
      add.u32 %s, %s, 16; add.u64 %from, %from, 16; bra.uni WAIT;
      WAIT: cp.async.wait_group 0; ld.shared.b32 %y, [%s+-4];
      ld.param.u64 %to, [p0]; st.global.b32 [%to], %y;
    """
    for schedule in (EAGER, LATE):
        run(body, [result, source], block=1, schedule=schedule)
        assert result.tolist() == [3]


def test_a_late_copy_outside_of_its_operand_is_named() -> None:
    source = np.arange(4, dtype=np.uint32)
    body = f"""{OWN}
      .shared .align 16 .b8 tile[16]; .reg .b64 %from; .reg .b32 %s; mov.u32 %s, tile; ld.param.u64 %from, [p1];
      .file 1 "copy.cu"
      .loc 1 9 1
      cp.async.cg.shared.global [%s], [%from+4096], 16;
      .loc 1 10 1
      cp.async.wait_all;
    """
    for schedule in (EAGER, LATE):
        with pytest.raises(FaultError, match=r"\(copy.cu:9\): cp.async.cg.* touches 16 bytes"):
            run(body, [numbers(32), source], block=1, schedule=schedule)


def test_cp_async_fills_up_with_zeros() -> None:
    source, result = np.arange(1, 5, dtype=np.uint32), numbers(32)
    body = f"""{OWN}
      .shared .align 16 .b8 tile[16]; .reg .b64 %from; .reg .b32 %s;
      mov.u32 %s, tile; ld.param.u64 %from, [p1]; setp.eq.u32 %p, %tid, 0;
      @%p cp.async.ca.shared.global [%s], [%from], 16, 6; cp.async.wait_all; bar.sync 0;
      and.b32 %x, %tid, 3; mad.lo.u32 %s, %x, 4, %s; ld.shared.b32 %y, [%s]; st.global.b32 [%at], %y;
    """
    run(body, [result, source])
    assert result.tolist() == [1, 2, 0, 0] * 8
