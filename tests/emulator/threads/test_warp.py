"""Exchanges between lanes, by the PTX ISA's description of each."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.snippet import evaluate
from tests.emulator.threads.lanes import Lanes, Shape

LANES: Array = np.arange(256, dtype=np.uint32)
OWN = {"%a": ("b32", LANES)}


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize(("offset", "width"), [(1, 32), (3, 32), (5, 8), (9, 16), (0, 32)])
def test_shuffles(mode: str, offset: int, width: int) -> None:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    text = f"""
      .reg .pred %p; shfl.sync.{mode}.b32 %d|%p, %a, {offset}, {clamp:#x}, -1; selp.b32 %e, 1, 0, %p;
    """
    got, inside = evaluate(text, OWN, {"%d": "b32", "%e": "b32"})
    for lane in range(256):
        place, segment = lane % 32, lane % 32 // width * width
        source = {
            "up": place - offset,
            "down": place + offset,
            "bfly": place ^ offset,
            "idx": segment + offset % width,
        }[mode]
        valid = segment <= source < segment + width if mode != "bfly" else source < segment + width
        assert inside[lane] == valid
        assert got[lane] == (lane - place + source if valid else lane)


def test_votes_and_matches() -> None:
    text = """
      .reg .pred %p<5>; .reg .b32 %x; and.b32 %x, %a, 3; setp.eq.u32 %p0, %x, 1;
      vote.sync.ballot.b32 %d, %p0, -1; vote.sync.any.pred %p1, %p0, -1; vote.sync.all.pred %p2, %p0, -1;
      vote.sync.uni.pred %p3, %p0, -1; match.any.sync.b32 %f, %x, -1;
      selp.b32 %e, 1, 0, %p1; @%p2 add.u32 %e, %e, 2; @%p3 add.u32 %e, %e, 4;
    """
    d, e, f = evaluate(text, OWN, dict.fromkeys(("%d", "%e", "%f"), "b32"))
    assert (d == 0x22222222).all()
    assert (e == 1).all()
    assert np.array_equal(f, 0x11111111 << (LANES & 3))


def test_reductions_and_elections() -> None:
    text = """
      .reg .pred %p; .reg .b32 %x; redux.sync.add.u32 %d, %a, -1; redux.sync.max.s32 %e, %a, -1;
      elect.sync %x|%p, -1; selp.b32 %f, 1, 0, %p;
    """
    d, e, f = evaluate(text, OWN, dict.fromkeys(("%d", "%e", "%f"), "b32"))
    warps = LANES.reshape(-1, 32)
    assert np.array_equal(d, warps.sum(1).repeat(32))
    assert np.array_equal(e, warps.max(1).repeat(32))
    assert np.array_equal(f.reshape(-1, 32), np.tile(np.arange(32) == 0, (8, 1)))


def test_lanes_lie_in_blocks_and_clusters() -> None:
    shape = Shape((4, 2, 1), (48, 1, 1), (2, 2, 1))
    order = [0, 1, 4, 5, 2, 3, 6, 7]
    lanes = Lanes(shape, order)
    assert lanes.count == 8 * 64
    assert lanes.alive.sum() == 8 * 48
    assert lanes.rank.tolist() == [0, 1, 2, 3] * 2
    assert lanes.cluster.tolist() == [0] * 4 + [1] * 4
    assert lanes.position[2].tolist() == [0, 1, 0]
    assert lanes.live_in_cluster(1) == 4 * 48
    first = int(np.nonzero((lanes.block == 5) & (lanes.thread == 33))[0][0])
    assert lanes.peers(first, 0b1001) == [4, 7]
    assert lanes.describe_thread(first) == "block (3, 0, 0) thread (33, 0, 0)"
    some = np.nonzero((lanes.block == 2) & (lanes.thread < 40))[0]
    assert lanes.describe(some) == "block (0, 1, 0) warps 0-1"
    lanes.leave(some)
    assert lanes.live_in_block.tolist() == [48, 48, 8, 48, 48, 48, 48, 48]
