"""mbarrier objects: phases, bytes, and the report of who waits for which."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import DeadlockError, FaultError
from tests.emulator.machine.schedule import ALL, LATE, Schedule
from tests.emulator.snippet import run

BEGIN = """
  .reg .b32 %tid, %bar, %s, %x, %y, %warp; .reg .b64 %out, %at, %from, %state; .reg .pred %p, %q, %done;
  .shared .align 8 .b64 mbar; .shared .align 16 .b8 tile[512];
  mov.u32 %tid, %tid.x; mov.u32 %bar, mbar; mov.u32 %s, tile; setp.eq.u32 %p, %tid, 0;
  shr.u32 %warp, %tid, 5; setp.eq.u32 %q, %warp, 0;
  ld.param.u64 %out, [p0]; mad.wide.u32 %at, %tid, 4, %out;
"""


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_a_producer_and_a_consumer_take_turns(schedule: Schedule) -> None:
    """Warp 0 writes eight values, each when warp 1 has read the one before."""
    result = np.zeros(64, np.uint32)
    body = f"""{BEGIN}
      .reg .b32 %i, %phase, %sum, %empty; .shared .align 8 .b64 other; mov.u32 %empty, other;
      @%p mbarrier.init.shared::cta.b64 [%bar], 32; @%p mbarrier.init.shared::cta.b64 [%empty], 32;
      bar.sync 0; mov.u32 %i, 0; mov.u32 %sum, 0; @!%q bra READ;
    WRITE: and.b32 %phase, %i, 1; xor.b32 %phase, %phase, 1;
    A: mbarrier.try_wait.parity.shared::cta.b64 %done, [%empty], %phase; @!%done bra A;
      st.shared.b32 [%s], %i; mbarrier.arrive.shared::cta.b64 _, [%bar];
      add.u32 %i, %i, 1; setp.lt.u32 %done, %i, 8; @%done bra WRITE; bra END;
    READ: and.b32 %phase, %i, 1;
    B: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], %phase; @!%done bra B;
      ld.shared.b32 %y, [%s]; mad.lo.u32 %sum, %sum, 10, %y; mbarrier.arrive.shared::cta.b64 %state, [%empty];
      add.u32 %i, %i, 1; setp.lt.u32 %done, %i, 8; @%done bra READ;
    END: st.global.b32 [%at], %sum;
    """
    run(body, [result], block=64, schedule=schedule)
    assert result.tolist() == [0] * 32 + [1234567] * 32


COPY = f"""{BEGIN}
  @%p mbarrier.init.shared::cta.b64 [%bar], 1; bar.sync 0;
  ld.param.u64 %from, [p1];
  @%p mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%bar], EXPECTED;
  @%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%from], 256, [%bar];
L: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra L;
  mad.lo.u32 %s, %tid, 4, %s; ld.shared.b32 %y, [%s]; st.global.b32 [%at], %y;
"""


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_a_bulk_copy_completes_a_phase(schedule: Schedule) -> None:
    source, result = np.arange(64, dtype=np.uint32) * 3, np.zeros(64, np.uint32)
    run(COPY.replace("EXPECTED", "256"), [result, source], block=64, schedule=schedule)
    assert result.tolist() == source.tolist()


def test_a_deadlock_names_the_mbarrier_what_it_lacks_and_the_warps_that_wait() -> None:
    source, result = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    with pytest.raises(DeadlockError) as caught:
        run(COPY.replace("EXPECTED", "272"), [result, source], block=64)
    text = str(caught.value)
    assert "every thread waits" in text
    assert "mbarrier at 0x400 (phase 0, 0 of 1 arrivals missing, 16 bytes still expected)" in text
    assert "block (0, 0, 0) warps 0-1 at mbarrier.try_wait" in text
    assert "PTX line" in text


def test_a_wait_that_is_left_out_shows_in_a_late_schedule() -> None:
    source, result = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    hasty = COPY.replace("EXPECTED", "256").replace("@!%done bra L;", "")
    done = run(hasty, [result, source], block=64, schedule=LATE)
    assert done.unfinished == () or "1 operations for the mbarrier at" in done.unfinished[0]
    twice = hasty.replace("L: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;", "")
    done = run(twice, [result, source], block=64, schedule=LATE)
    (left,) = done.unfinished
    assert left.startswith("k, PTX line ")
    assert ": @%p cp.async.bulk.shared::cluster.global.mbarrier" in left
    assert left.endswith(": 1 operations for the mbarrier at 0x400 were never waited for")
    assert result.tolist() != source.tolist()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mbarrier.arrive.shared::cta.b64 _, [%bar];", "was not initialised"),
        ("mbarrier.init.shared::cta.b64 [%bar], 0;", "a count of 0"),
        ("add.u32 %bar, %bar, 4; mbarrier.init.shared::cta.b64 [%bar], 1;", "no multiple of 8"),
        (
            "@%p mbarrier.init.shared::cta.b64 [%bar], 1; bar.sync 0; @%p mbarrier.arrive.shared::cta.b64 _, [%bar], 2;",
            "2 arrivals at the mbarrier at 0x400, more than it counts",
        ),
        (
            "@%p mbarrier.init.shared::cta.b64 [%bar], 1; bar.sync 0; @%p mbarrier.init.shared::cta.b64 [%bar], 2;",
            "at 0x400: mbarrier.inval first (phase 0, 1 of 1 arrivals missing, 0 bytes still expected)",
        ),
        ("mbarrier.init.shared::cta.b64 [%bar], 1;", "at 0x400: mbarrier.inval first"),
        (
            "@%p mbarrier.init.shared::cta.b64 [%bar], 1; @%p mbarrier.inval.shared::cta.b64 [%bar]; bar.sync 0; "
            "mbarrier.test_wait.parity.shared::cta.b64 %done, [%bar], 0;",
            "was not initialised",
        ),
    ],
)
def test_wrong_use_is_a_fault(text: str, reason: str) -> None:
    with pytest.raises(FaultError, match="PTX line") as caught:
        run(f"{BEGIN} {text}", [np.zeros(64, np.uint32)], block=64)
    assert reason in str(caught.value)


INIT = "@%p mbarrier.init.shared::cta.b64 [%bar], 1; bar.sync 0;"
BULK = "@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [%out], 16, [%bar];"


@pytest.mark.parametrize(
    "write",
    [
        "@%p st.shared.b32 [%bar+4], 0;",
        "@%p st.shared.u8 [%bar+7], 0;",
        "@%p st.shared.v2.b64 [%bar], {%out, %out};",
        "@%p red.shared.add.u32 [%bar], 1;",
        "@%p cp.async.ca.shared.global [%bar], [%out], 8;",
        BULK.format(to="%bar"),
    ],
)
def test_nothing_else_writes_to_an_mbarrier_in_use(write: str) -> None:
    begin = BEGIN.replace(".align 8 .b64 mbar;", ".align 16 .b64 mbar;")
    arrays = [np.zeros(64, np.uint32)]
    with pytest.raises(FaultError, match="hits the mbarrier at 0x400, which is in use"):
        run(f"{begin} {INIT} {write}", arrays, block=64)
    if "complete_tx" not in write:
        end = "@%p mbarrier.inval.shared::cta.b64 [%bar];"
        run(f"{begin} {INIT} {end} {write}", arrays, block=64)
    beside = write.replace("[%bar", "[%s", 1)
    run(f"{begin} {INIT} {beside}", arrays, block=64)


@pytest.mark.parametrize(
    "text",
    [
        "mov.u32 %bar, 0; @%p mbarrier.init.shared::cta.b64 [%bar], 1;",
        f"{INIT} {BULK.format(to='%x')}",
    ],
)
def test_the_systems_shared_memory_is_not_the_blocks(text: str) -> None:
    with pytest.raises(FaultError, match=r"at shared address 0x0; a block has 0x400 to"):
        run(f"{BEGIN} mov.u32 %x, 0; {text}", [np.zeros(64, np.uint32)], block=64)


def test_an_mbarrier_is_initialised_again_behind_its_end() -> None:
    again = (
        "@%p mbarrier.inval.shared::cta.b64 [%bar]; @%p mbarrier.init.shared::cta.b64 [%bar], 2;"
    )
    run(f"{BEGIN} {INIT} {again}", [np.zeros(64, np.uint32)], block=64)


def test_the_state_of_an_arrival_is_waited_for() -> None:
    result = np.zeros(64, np.uint32)
    body = f"""{BEGIN}
      @%p mbarrier.init.shared::cta.b64 [%bar], 64; bar.sync 0;
      mbarrier.arrive.shared::cta.b64 %state, [%bar];
    L: mbarrier.test_wait.shared::cta.b64 %done, [%bar], %state; @!%done bra L;
      st.global.b32 [%at], 5;
    """
    run(body, [result], block=64)
    assert result.tolist() == [5] * 64


def test_who_drops_out_is_not_counted_again() -> None:
    result = np.zeros(64, np.uint32)
    body = f"""{BEGIN}
      @%p mbarrier.init.shared::cta.b64 [%bar], 64; bar.sync 0;
      @%q mbarrier.arrive_drop.shared::cta.b64 %state, [%bar]; @%q bra END;
      mbarrier.arrive.shared::cta.b64 %state, [%bar];
    L: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra L;
      mbarrier.arrive.shared::cta.b64 %state, [%bar];
    M: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 1; @!%done bra M;
      st.global.b32 [%at], 5;
    END:
    """
    run(body, [result], block=64)
    assert result.tolist() == [0] * 32 + [5] * 32
