"""Exchanges between lanes, by the PTX ISA's description of each."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import evaluate, run
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


@pytest.mark.parametrize(("name", "numpy_function"), [("min", np.nanmin), ("max", np.nanmax)])
def test_extremes_of_floats_are_of_numbers(name: str, numpy_function: Callable[..., Array]) -> None:
    values = np.random.default_rng(6).standard_normal((8, 32)).astype(np.float32)
    values[1:, ::3] = np.nan
    values[2], values[3], values[3, 5:7] = np.nan, 0.0, -0.0
    text = f"redux.sync.{name}.f32 %d, %a, -1;"
    (got,) = evaluate(text, {"%a": ("f32", values.ravel())}, {"%d": "b32"})
    rows = got.reshape(8, 32)
    assert (rows == rows[:, :1]).all()
    numbers = [warp for warp in range(8) if warp not in (2, 3)]
    wanted = numpy_function(values[numbers], axis=1).view(np.uint32)
    assert rows[numbers, 0].tolist() == wanted.tolist()
    assert rows[2, 0] == 0x7FFFFFFF
    assert rows[3, 0] == (0x80000000 if name == "min" else 0)


def test_floats_are_not_added_in_a_warp() -> None:
    with pytest.raises(PtxError, match="of float32 there are min and max"):
        apart("redux.sync.add.f32 %y, %t, 0xFF;")


APART = """
  .reg .b32 %t, %y; .reg .b64 %out; .reg .pred %p, %q;
  mov.u32 %t, %tid.x; ld.param.u64 %out, [p0]; mad.wide.u32 %out, %t, 4, %out;
  setp.lt.u32 %p, %t, 8; mov.b32 %y, 0; LOW
  @%p bra A; OTHER bra END; A: TEXT END: bar.warp.sync -1; st.global.b32 [%out], %y;
"""
MASKED = [
    "shfl.sync.idx.b32 %y, %t, 3, 31, {};",
    "vote.sync.ballot.b32 %y, 1, {};",
    "redux.sync.max.u32 %y, %t, {};",
    "match.any.sync.b32 %y, 7, {};",
    "elect.sync %y|%q, {};",
    "bar.warp.sync {};",
]


def apart(text: str, other: str = "", before: str = "") -> Array:
    """Return what each lane of a warp has behind a text that its first eight lanes run, and the others run another."""
    result = np.zeros(32, np.uint32)
    body = APART.replace("TEXT", text).replace("OTHER", other).replace("LOW", before)
    run(body, [result])
    return result


@pytest.mark.parametrize("text", MASKED)
def test_all_lanes_of_a_membermask_run_the_instruction(text: str) -> None:
    apart(text.format(0xFF))
    for mask in ("-1", "0x1FF"):
        with pytest.raises(FaultError, match=r"PTX line .*not all lanes of a warp are here"):
            apart(text.format(mask))
    with pytest.raises(FaultError, match="not all lanes of a warp are here"):
        apart(text.format("-1"), text.format("-1"))
    with pytest.raises(FaultError, match="a lane runs this instruction that its membermask"):
        apart(text.format("0x7F"))
    with pytest.raises(FaultError, match="not all lanes of a warp are here"):
        apart("", before=f"@%p {text.format('-1')}")


def test_a_membermask_names_the_lanes_that_take_part() -> None:
    shuffled, ballot, largest, same, elected, _ = (apart(each.format(0xFF)) for each in MASKED)
    rest = [0] * 24
    assert shuffled.tolist() == [3] * 8 + rest
    assert ballot.tolist() == same.tolist() == [0xFF] * 8 + rest
    assert largest.tolist() == [7] * 8 + rest
    assert elected.tolist() == [0] * 32
    assert apart("", before="@%p redux.sync.max.u32 %y, %t, 0xFF;").tolist() == [7] * 8 + rest


def test_nobody_waits_for_lanes_that_have_ended() -> None:
    ballot, shuffled = (apart(each.format("-1"), "exit;") for each in MASKED[1::-1])
    assert ballot[:8].tolist() == [0xFF] * 8
    assert shuffled[:8].tolist() == [3] * 8
    absent = apart("shfl.sync.idx.b32 %y, %t, 20, 31, -1;", "exit;")
    assert absent[:8].tolist() == [0xFFFFFFFF] * 8


def test_aligned_instructions_are_for_whole_warps() -> None:
    text = "movmatrix.sync.aligned.m8n8.trans.b16 %y, %t;"
    apart("", before=text)
    for body in (text, "setmaxnreg.inc.sync.aligned.u32 40;"):
        with pytest.raises(FaultError, match="not all lanes of a warp are here"):
            apart(body)


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
