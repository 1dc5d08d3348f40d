"""Which phase of an mbarrier a wait is for, and what it hands over."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator import snippet
from tests.emulator.machine.schedule import WATCHED
from tests.emulator.races.phases import Phases
from tests.emulator.races.touched import RaceError

_HEAD = """
  .reg .b32 %r<8>; .reg .b64 %token; .reg .pred %p<4>;
  .shared .align 16 .b8 buffer[64]; .shared .align 8 .b64 bar;
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p2, %r0, 32;
  @%p0 mbarrier.init.shared.b64 [bar], COUNT; bar.sync 0;
"""
_WRITE = "st.shared.u32 [buffer], 7;"
_READ = "ld.shared.u32 %r5, [buffer];"
_ARRIVE = "mbarrier.arrive.shared.b64 _, [bar];"


def _wait(parity: int, name: str = "W") -> str:
    return f"{name}: mbarrier.try_wait.parity.shared.b64 %p1, [bar], {parity}; @!%p1 bra {name};"


def races(first: str, second: str, count: int = 1) -> bool:
    """Return whether a thread of the first warp and one of the second race; the first runs until it waits."""
    body = f"@!%p0 bra SECOND; {first} bra END; SECOND: @!%p2 bra END; {second} END:"
    text = _HEAD.replace("COUNT", str(count)) + body
    try:
        snippet.run(text, [np.zeros(1, np.uint32)], block=64, schedule=WATCHED)
    except RaceError:
        return True
    return False


def test_a_wait_for_the_parity_before_the_first_phase_hands_nothing_over() -> None:
    """It is over at once on a fresh mbarrier, though two phases are complete here."""
    assert races(_WRITE + _ARRIVE + _ARRIVE, _wait(1) + _READ)
    assert not races(_WRITE + _ARRIVE, _wait(0) + _READ)


def test_a_wait_is_for_the_first_phase_of_its_parity() -> None:
    """Three phases are complete, of which the third has the parity of the first."""
    assert not races(f"{_WRITE} {_ARRIVE} {_ARRIVE} {_ARRIVE}", _wait(0) + _READ)
    assert races(f"{_ARRIVE} {_WRITE} {_ARRIVE} {_ARRIVE}", _wait(0) + _READ)


def test_a_thread_that_arrives_alone_knows_that_its_phase_is_complete() -> None:
    """Two phases; then the other one writes and arrives at the third, for which the first one waits."""
    body = f"""@%p0 {_ARRIVE} @%p0 {_ARRIVE} bar.sync 0; @%p2 {_WRITE} @%p2 {_ARRIVE}
      @!%p0 bra END; {_wait(0)} {_READ} END:"""
    text = _HEAD.replace("COUNT", "1") + body
    snippet.run(text, [np.zeros(1, np.uint32)], block=64, schedule=WATCHED)


def test_a_wait_for_a_token_is_for_its_phase() -> None:
    """Of two arrivals; the second thread writes behind the first phase."""
    first = f"mbarrier.arrive_drop.shared.b64 %token, [bar]; W: mbarrier.try_wait.shared.b64 %p1, [bar], %token; @!%p1 bra W; {_READ}"
    late = f"{_ARRIVE} {_WRITE} {_ARRIVE}"
    assert races(first, late, count=2)
    assert not races(first, f"{_WRITE} {_ARRIVE}", count=2)


def test_the_last_phases_are_kept_and_counted_from_the_beginning() -> None:
    phases = Phases()
    assert phases.known(-1) is None
    assert phases.known(0) is None
    for number in range(6):
        phases.complete(np.array([number]))
    assert [phases.known(place) for place in (-1, 0, 2, 3, 5)] == [None, 2, 2, 3, 5]
    phases.begin()
    assert phases.before == 6
    assert phases.known(0) is None
    phases.complete(np.array([9]))
    assert phases.known(0) == 9


def test_phases_are_counted_anew_when_an_mbarrier_begins_again() -> None:
    """Both warps know of two phases of the one before."""
    renew = (
        "@%p0 mbarrier.inval.shared.b64 [bar]; @%p0 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;"
    )
    body = f"""@%p0 {_ARRIVE} @%p0 {_ARRIVE} {renew} WRITE @%p0 {_ARRIVE} BEHIND
      @!%p2 bra END; {_wait(0)} {_READ} END:"""
    text = _HEAD.replace("COUNT", "1") + body
    write, arrays = f"@%p0 {_WRITE}", [np.zeros(1, np.uint32)]
    before = text.replace("WRITE", write).replace("BEHIND", "")
    behind = text.replace("WRITE", "").replace("BEHIND", write)
    snippet.run(before, arrays, block=64, schedule=WATCHED)
    with pytest.raises(RaceError):
        snippet.run(behind, arrays, block=64, schedule=WATCHED)
