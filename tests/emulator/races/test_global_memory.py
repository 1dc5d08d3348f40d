"""Races on global memory: what one block writes another one may read behind a flag, if both have their fences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator import snippet
from tests.emulator.machine.schedule import WATCHED
from tests.emulator.races.touched import RaceError

_BODY = """
  .reg .b32 %t, %b, %v, %f; .reg .b64 %data, %flag, %out, %at; .reg .pred %p<4>;
  mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; ld.param.u64 %data, [p0]; ld.param.u64 %flag, [p1]; ld.param.u64 %out, [p2];
  setp.ne.u32 %p1, %t, 0; setp.ne.u32 %p0, %b, 0; @%p0 bra READER;
  mul.wide.u32 %at, %t, 4; add.u64 %at, %data, %at; st.global.u32 [%at], %t;
  WRITTEN
  @%p1 bra END;
  RELEASE
  bra END;
READER:
  @%p1 bra WAITED;
POLL:
  AGAIN
  setp.eq.u32 %p2, %f, 0; @%p2 bra POLL;
  BEHIND
WAITED:
  bar.sync 0;
  xor.b32 %v, %t, 32; mul.wide.u32 %at, %v, 4; add.u64 %at, %data, %at; ld.global.u32 %v, [%at];
  mul.wide.u32 %at, %t, 4; add.u64 %at, %out, %at; st.global.u32 [%at], %v;
END:
"""
_BARRIER = "bar.sync 0;"
_FENCE = "fence.acq_rel.gpu;"
_RELEASE = "st.release.gpu.global.u32 [%flag], 1;"
_ADD = "red.relaxed.gpu.global.add.u32 [%flag], 1;"
_ACQUIRE = "ld.acquire.gpu.global.u32 %f, [%flag];"
_RELAXED = "ld.relaxed.gpu.global.u32 %f, [%flag];"
_PLAIN = "ld.global.u32 %f, [%flag];"
_SWAP = "atom.global.cas.b32 %f, [%flag], 1, 0;"


def run(release: str, poll: str, behind: str = "", barrier: str = _BARRIER) -> list[int]:
    data, flag, out = (np.zeros(count, np.uint32) for count in (64, 16, 64))
    body = _BODY.replace("WRITTEN", barrier).replace("RELEASE", release)
    body = body.replace("AGAIN", poll).replace("BEHIND", behind)
    snippet.run(body, [data, flag, out], block=64, grid=2, schedule=WATCHED)
    return out.tolist()


@pytest.mark.parametrize(
    ("release", "poll", "behind"),
    [
        (_RELEASE, _ACQUIRE, ""),
        ("red.release.gpu.global.add.u32 [%flag], 1;", _ACQUIRE, ""),
        ("atom.acq_rel.gpu.global.add.u32 %f, [%flag], 1;", _ACQUIRE, ""),
        (_FENCE + _ADD, _RELAXED, _FENCE),
        ("membar.gl;" + "st.volatile.global.u32 [%flag], 1;", _RELAXED, "membar.gl;"),
        (_FENCE + _ADD, _SWAP, "fence.sc.gpu;"),
    ],
)
def test_a_flag_with_both_fences_hands_over_what_a_block_has_written(
    release: str, poll: str, behind: str
) -> None:
    assert run(release, poll, behind) == [thread ^ 32 for thread in range(64)]


@pytest.mark.parametrize(
    ("release", "poll", "behind"),
    [
        (_ADD, _ACQUIRE, ""),  # nothing is released
        (_ADD + _FENCE, _ACQUIRE, ""),  # too late
        (_RELEASE, _RELAXED, ""),  # nothing is acquired
        (_RELEASE, _SWAP, ""),
        (_RELEASE, _PLAIN, _FENCE),  # no flag is read
        ("st.global.u32 [%flag], 1;", _ACQUIRE, ""),
    ],
)
def test_without_either_fence_it_is_a_race(release: str, poll: str, behind: str) -> None:
    with pytest.raises(RaceError, match="global memory that"):
        run(release, poll, behind)


def test_without_a_barrier_a_flag_hands_over_what_its_own_warp_has_written() -> None:
    with pytest.raises(
        RaceError,
        match=r"block \(1, 0, 0\).* reads global memory that block \(0, 0, 0\) warps 1 wrote",
    ):
        run(_RELEASE, _ACQUIRE, barrier="")


def test_an_atomic_operation_hands_on_what_was_released_before() -> None:
    """Its value is that of the release with more added (PTX ISA, "release sequence")."""
    assert run(_RELEASE + _ADD, _ACQUIRE) == [thread ^ 32 for thread in range(64)]
    with pytest.raises(RaceError, match="global memory that"):
        run(_RELEASE + "st.relaxed.gpu.global.u32 [%flag], 2;", _ACQUIRE)


def test_two_blocks_write_one_element_only_if_they_write_the_same() -> None:
    body = """
      .reg .b32 %b; .reg .b64 %at;
      mov.u32 %b, %ctaid.x; ld.param.u64 %at, [p0];
      st.global.u32 [%at], VALUE;
    """
    snippet.run(body.replace("VALUE", "7"), [np.zeros(4, np.uint32)], grid=2, schedule=WATCHED)
    with pytest.raises(RaceError, match=r"writes global memory that .* wrote"):
        snippet.run(body.replace("VALUE", "%b"), [np.zeros(4, np.uint32)], grid=2, schedule=WATCHED)
