"""Loads, stores and atomics in all spaces."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.memory.allowed import Allowed
from tests.emulator.snippet import evaluate, run
from tests.support.emulator.threads import OWN, numbers

LANES: Array = np.arange(64, dtype=np.uint32)


def test_each_thread_has_local_memory_of_its_own() -> None:
    text = """
      .local .align 8 .b8 stack[16]; .reg .b64 %l, %g; .reg .b32 %x;
      mov.u64 %l, stack; st.local.b32 [%l+4], %a; cvta.local.u64 %g, %l; ld.b32 %x, [%g+4];
      add.u32 %d, %x, 1;
    """
    (got,) = evaluate(text, {"%a": ("b32", LANES)}, {"%d": "b32"})
    assert np.array_equal(got, LANES + 1)


def test_generic_addresses_lead_to_shared_memory() -> None:
    text = """
      .shared .align 4 .b8 tile[1024]; .reg .b32 %s; .reg .b64 %w, %g; .reg .pred %p;
      mov.u32 %s, tile; mad.lo.u32 %s, %i1, 4, %s; cvt.u64.u32 %w, %s; cvta.shared.u64 %g, %w;
      st.b32 [%g], %a; isspacep.shared %p, %g; ld.shared.b32 %d, [%s]; selp.b32 %e, 1, 0, %p;
    """
    d, e = evaluate(text, {"%a": ("b32", LANES)}, {"%d": "b32", "%e": "b32"})
    assert np.array_equal(d, LANES)
    assert e.all()


def test_vectors_and_narrow_elements() -> None:
    source = np.arange(64 * 8, dtype=np.uint16)
    result = np.zeros_like(source)
    body = f"""{OWN}
      .reg .b64 %from; .reg .b16 %h<8>; .reg .b32 %w<4>;
      ld.param.u64 %from, [p1]; mad.wide.u32 %from, %tid, 16, %from; mad.wide.u32 %at, %tid, 16, %out;
      ld.global.v4.b32 {{%w0, %w1, %w2, %w3}}, [%from];
      mov.b32 {{%h0, %h1}}, %w0; mov.b32 %w0, {{%h1, %h0}};
      st.global.v2.b32 [%at], {{%w3, %w2}}; st.global.v2.b32 [%at+8], {{%w1, %w0}};
    """
    run(body, [result, source], block=64)
    rows = source.reshape(64, 4, 2)
    wanted = rows[:, ::-1].copy()
    wanted[:, 3] = rows[:, 0, ::-1]
    assert np.array_equal(result.reshape(64, 4, 2), wanted)


@pytest.mark.parametrize(
    ("text", "first", "wanted"),
    [
        ("atom.global.add.u32 %y, [%out], 3;", 0, 64 * 3),
        ("red.global.max.s32 [%out], %tid;", 5, 63),
        ("atom.global.min.u32 %y, [%out], %tid;", 50, 0),
        ("atom.global.inc.u32 %y, [%out], 9;", 0, 64 % 10),
        ("atom.global.dec.u32 %y, [%out], 9;", 0, 6),
        ("red.global.or.b32 [%out], %tid;", 0, 63),
        ("atom.global.cas.b32 %y, [%out], %tid, 7777;", 40, 7777),
        ("atom.global.exch.b32 %y, [%out], %tid;", 1, 63),
        ("red.global.add.f32 [%out], 0f3F000000;", 0, int(np.float32(32).view(np.uint32))),
        ("red.global.add.noftz.bf16x2 [%out], 1065369472;", 0, 0x42804280),
    ],
)
def test_atomics_take_each_lane_once(text: str, first: int, wanted: int) -> None:
    result = numbers(1)
    result[0] = first
    run(f"{OWN} {text}", [result], block=64)
    assert result[0] == wanted


def test_an_atomic_returns_what_was_there() -> None:
    counter, result = numbers(1), numbers(64)
    body = f"""{OWN} .reg .b64 %c; ld.param.u64 %c, [p1];
      setp.gt.u32 %p, %tid, 15; mov.u32 %y, 99; @%p atom.global.add.u32 %y, [%c], 2; st.global.b32 [%at], %y;
    """
    run(body, [result, counter], block=64)
    assert sorted(result[16:].tolist()) == list(range(0, 96, 2))
    assert result[:16].tolist() == [99] * 16


def test_variables_have_their_first_values() -> None:
    before = ".global .align 4 .u32 known[3] = {7, 0x10, 9}; .const .align 8 .f64 half = 0d3FE0000000000000;"
    result = numbers(32)
    body = f"""{OWN} .reg .b64 %g; .reg .f64 %h;
      mov.u64 %g, known; ld.global.u32 %x, [%g+4]; mov.u64 %g, half; ld.const.f64 %h, [%g];
      fma.rn.f64 %h, %h, 0d4000000000000000, 0d4008000000000000; cvt.rzi.u32.f64 %y, %h;
      add.u32 %x, %x, %y; st.global.b32 [%at], %x;
    """
    run(body, [result], before=before)
    assert result.tolist() == [16 + 4] * 32


def test_memory_between_operands_may_not_be_touched() -> None:
    allowed = Allowed([(0x1000, 0x1010), (0x1010, 0x1020), (0x2000, 0x2008)])
    addresses = [0xFFF, 0x1000, 0x100C, 0x101D, 0x2004, 0x2005, 0x3000]
    wanted = [True, False, False, True, False, True, True]
    assert allowed.wrong(np.array(addresses, np.uint64), 4).tolist() == wanted
    with pytest.raises(FaultError, match="bulk touches 16 bytes at global address 0x2000"):
        allowed.check(0x2000, 16, "bulk")
    assert Allowed([]).wrong(0x1000, 1).all()


def test_what_may_only_be_read_may_not_be_written() -> None:
    room = np.zeros(1, np.uint32)
    allowed = Allowed([(0x1000, 0x1010)], [(0x1010, 0x1020)]).with_arrays([room])
    addresses = np.array([0x100C, 0x1010, 0x100E, 0x1020, room.ctypes.data], np.uint64)
    assert allowed.wrong(addresses, 4).tolist() == [False, False, False, True, False]
    assert allowed.wrong(addresses, 4, written=True).tolist() == [False, True, True, True, False]
    allowed.check(0x1010, 16, "bulk")
    with pytest.raises(FaultError, match="0x1010, in an operand that may only be read"):
        allowed.check(0x1010, 16, "bulk", written=True)


@pytest.mark.parametrize(
    "text",
    [
        "st.global.b32 [%out], %tid;",
        "st.b32 [%out], %tid;",
        "red.global.add.u32 [%out], 1;",
        "atom.global.exch.b32 %y, [%out], %tid;",
    ],
)
def test_every_way_to_write_is_checked_as_a_write(text: str) -> None:
    with pytest.raises(FaultError, match="in an operand that may only be read"):
        run(f"{OWN} {text}", [numbers(64)], only_read=True)


OTHER_BLOCK = f"""{OWN}
  .shared .align 8 .b64 tile; .reg .b32 %s; .reg .b64 %w;
  mov.u32 %s, tile; xor.b32 %s, %s, 0x1000000; cvt.u64.u32 %w, %s; cvta.shared.u64 %w, %w;
  setp.eq.u32 %p, %tid, 0; @%p mbarrier.init.shared::cta.b64 [tile], 1;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
"""Threads with the address of `tile` in the other one of two blocks, which is an mbarrier there."""


@pytest.mark.parametrize(
    "text",
    [
        "ld.shared::cluster.b32 %x, [%s];",
        "ld.b32 %x, [%w];",
        "@%p mbarrier.arrive.shared::cluster.b64 _, [%s];",
        "@%p mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%s], 16;",
        "mbarrier.try_wait.parity.shared::cta.b64 %q, [%s], 1;",
        "@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s+16], [%out], 16, [%s];",
        "@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile+16], [%out], 16, [%s];",
    ],
)
def test_shared_memory_of_other_clusters_is_out_of_reach(text: str) -> None:
    begin = OTHER_BLOCK.replace(".b64 tile;", ".b64 tile[8];")
    run(begin + text, [numbers(64)], grid=2, cluster=2)
    with pytest.raises(FaultError, match=r"PTX line .*touches .* at shared address 0x1000"):
        run(begin + text, [numbers(64)], grid=2)


@pytest.mark.parametrize("address", ["mov.u64 %c, half;", "mov.u64 %c, p0; cvta.param.u64 %c, %c;"])
def test_parameters_and_constants_may_only_be_read(address: str) -> None:
    before = ".global .align 8 .u64 free; .const .align 8 .f64 half = 0d3FE0000000000000;"
    body = f"{OWN} .reg .b64 %c; {address} ld.global.u32 %x, [%c]; st.global.u32 [%c], %x;"
    with pytest.raises(FaultError, match="in an operand that may only be read"):
        run(body, [numbers(32)], before=before)
    run(body.replace(address, "mov.u64 %c, free;"), [numbers(32)], before=before)
