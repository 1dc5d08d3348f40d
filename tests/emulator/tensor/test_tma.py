"""TMA and bulk copies: boxes at the edges of a tensor, multicast, reductions, tensor maps changed on the device."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.schedule import ALL, LATE, Schedule
from tests.emulator.snippet import run
from tests.emulator.tensor.tensor_map import TensorMap
from tests.support.emulator.boxes import BEGIN, LOAD, PLAIN, STORE, WAIT, encoded, map_of


@pytest.mark.parametrize("schedule", ALL[:2], ids=str)
@pytest.mark.parametrize(("x", "y"), [(0, 0), (20, 5), (-3, -2), (100, 0)])
def test_a_box_is_zero_outside_of_the_tensor(x: int, y: int, schedule: Schedule) -> None:
    source = np.arange(12 * 32, dtype=np.uint32).reshape(12, 32) + 1
    result = np.zeros((8, 32), np.uint32)
    body = LOAD.replace("X", str(x)).replace("Y", str(y))
    run(body, [encoded(map_of(source, (32, 8))), result, source], block=256, schedule=schedule)
    padded = np.zeros((40, 200), np.uint32)
    padded[10:22, 50:82] = source
    assert np.array_equal(result, padded[10 + y : 18 + y, 50 + x : 82 + x])


def test_outside_may_be_nan_instead() -> None:
    source, result = np.ones((12, 32), np.float32), np.zeros((8, 32), np.float32)
    body = LOAD.replace("X", "16").replace("Y", "0")
    run(body, [encoded(map_of(source, (32, 8), nan=True)), result, source], block=256)
    assert (result[:, :16] == 1).all()
    assert np.isnan(result[:, 16:]).all()


@pytest.mark.parametrize(("swizzle", "width"), [(1, 32), (2, 64), (3, 128)])
def test_pieces_of_16_bytes_are_exchanged_by_the_address(swizzle: int, width: int) -> None:
    columns = width // 4
    rows = 1024 // width
    source = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
    result = np.zeros(256, np.uint32)
    body = LOAD.replace("X", "0").replace("Y", "0")
    run(body, [encoded(map_of(source, (columns, rows), swizzle)), result, source], block=256)
    for row in range(rows):
        for column in range(columns):
            address = row * width + column * 4
            place = address ^ (address >> 7) % (width // 16) * 16
            assert result[place // 4] == source[row, column]


def test_pieces_of_32_bytes_are_exchanged_by_the_address() -> None:
    source, result = np.arange(256, dtype=np.uint32).reshape(8, 32), np.zeros((8, 32), np.uint32)
    body = LOAD.replace("X", "0").replace("Y", "0")
    run(body, [encoded(map_of(source, (32, 8), 4)), result, source], block=256, target="sm_100a")
    for row in range(8):
        pieces = source[row].reshape(4, 8)
        assert np.array_equal(result[row].reshape(4, 8), pieces[np.arange(4) ^ row % 4])


ADDED = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"


@pytest.mark.parametrize("schedule", ALL[:2], ids=str)
@pytest.mark.parametrize(("opcode", "added"), [(PLAIN, 0), (ADDED, 1)])
@pytest.mark.parametrize("dtype", [np.uint32, np.float32])
def test_a_store_writes_or_adds_what_is_inside(
    opcode: str, added: int, dtype: type[np.uint32] | type[np.float32], schedule: Schedule
) -> None:
    target = np.full((4, 16), 1000, dtype)
    value = "cvt.rn.f32.u32 %f, %x; mov.b32 %x, %f;" if dtype is np.float32 else ""
    body = STORE.replace("OPCODE", opcode).replace("VALUE", value)
    body = ".reg .f32 %f;" + body.replace("AWAIT", "@%p cp.async.bulk.wait_group.read 0;")
    run(body, [encoded(map_of(target, (16, 4))), target], block=64, schedule=schedule)
    box = np.arange(1, 65).reshape(4, 16)
    wanted = np.full((4, 16), 1000.0)
    wanted[:2, 4:] = box[2:, :12] + 1000 * added
    assert np.array_equal(target, wanted.astype(dtype))


@pytest.mark.parametrize(
    ("guard", "column", "copies"),
    [("@%p", "4", 1), ("", "4", 2), ("", "%col", 4)],
    ids=["a lane", "two warps", "two columns a warp"],
)
def test_a_store_of_a_warp_counts_once_for_equal_operands(
    guard: str, column: str, copies: int
) -> None:
    body = STORE.replace("OPCODE", PLAIN).replace("VALUE", "").replace("AWAIT", "")
    body = body.replace("@%p cp.async.bulk.tensor", f"{guard} cp.async.bulk.tensor")
    body = body.replace("{4, -2}", f"{{{column}, 0}}")
    pair = ".reg .b32 %col; mov.u32 %col, %tid.x; and.b32 %col, %col, 1; mul.lo.u32 %col, %col, 8;"
    target = np.zeros((4, 24), np.uint32)
    done = run(pair + body, [encoded(map_of(target, (8, 4))), target], block=64)
    box = 8 * 4 * 4
    assert done.traffic["global written"] == copies * box
    assert done.traffic["shared read"] == copies * box


BYTES = (
    STORE.replace("VALUE", "")
    .replace("AWAIT", "")
    .replace(
        "@%p OPCODE [%map, {4, -2}], [%s];",
        "cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 64;",
    )
)


def test_stores_write() -> None:
    target = np.zeros((4, 16), np.uint32)
    boxes = STORE.replace("OPCODE", PLAIN).replace("VALUE", "").replace("AWAIT", "")
    for body in (boxes, BYTES):
        with pytest.raises(FaultError, match="in an operand that may only be read"):
            run(body, [encoded(map_of(target, (16, 4))), target], block=64, only_read=True)


def test_bulk_stores_of_a_warp_count_once_for_equal_operands() -> None:
    target = np.zeros(64, np.uint32)
    done = run(BYTES, [np.zeros(128, np.uint8), target], block=64)
    assert done.traffic["global written"] == 2 * 64
    assert target[:16].tolist() == list(range(1, 17))


def test_reductions_of_a_warp_count_for_each_lane() -> None:
    target = np.zeros((4, 16), np.uint32)
    body = STORE.replace("@%p OPCODE", ADDED).replace("VALUE", "").replace("AWAIT", "")
    done = run(body, [encoded(map_of(target, (16, 4))), target], block=64)
    assert done.traffic["global written"] == 64 * 2 * 12 * 4
    assert target[0, 4] == 64 * 33


def test_a_store_that_is_not_waited_for_may_read_what_comes_later() -> None:
    late = (
        STORE.replace("OPCODE", PLAIN).replace("VALUE", "") + "bar.sync 0; st.shared.b32 [%y], 7;"
    )
    target = np.zeros((4, 16), np.uint32)
    maps = encoded(map_of(target, (16, 4)))
    done = run(late.replace("AWAIT", ""), [maps, target], block=64, schedule=LATE)
    assert (target[:2, 4:] == 7).all()
    (left,) = done.unfinished
    assert "cp.async.bulk.tensor.2d" in left
    assert left.endswith(": 1 bulk store operations of 1 threads were never waited for")
    waits = late.replace("AWAIT", "@%p cp.async.bulk.wait_group.read 0;")
    assert run(waits, [maps, target], block=64, schedule=LATE).unfinished == ()
    assert target[0, 4] == 33


def test_a_store_needs_a_proxy_fence_behind_what_threads_have_written() -> None:
    target = np.zeros((4, 16), np.uint32)
    maps = encoded(map_of(target, (16, 4)))
    body = STORE.replace("OPCODE", PLAIN).replace("VALUE", "").replace("AWAIT", "")
    run(body, [maps, target], block=64)
    with pytest.raises(FaultError, match=r"no fence\.proxy\.async since"):
        run(body.replace("fence.proxy.async.shared::cta;", ""), [maps, target], block=64)
    other = body.replace("fence.proxy.async.shared::cta;", "fence.acq_rel.cta;")
    with pytest.raises(FaultError, match=r"no fence\.proxy\.async since"):
        run(other, [maps, target], block=64)


def test_a_load_reaches_several_blocks_of_a_cluster() -> None:
    source = np.arange(8 * 32, dtype=np.uint32).reshape(8, 32)
    result = np.zeros((2, 256), np.uint32)
    body = f"""{BEGIN} .reg .b16 %mask; .reg .pred %first; .reg .b32 %who;
      @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 1024;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      setp.eq.and.u32 %first, %rank, 0, %p; mov.u16 %mask, 3;
      @%first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
        [%s], [%map, {{0, 0}}], [%bar], %mask;
      {WAIT}
      mad.lo.u32 %who, %rank, 256, %tid; mad.wide.u32 %at, %who, 4, %out; mad.lo.u32 %s, %tid, 4, %s;
      ld.shared.b32 %x, [%s]; st.global.b32 [%at], %x;
    """
    for schedule in ALL[:2]:
        result[:] = 0
        arrays = [encoded(map_of(source, (32, 8))), result, source]
        run(body, arrays, block=256, grid=2, cluster=2, schedule=schedule)
        assert np.array_equal(result, np.stack([source.reshape(-1)] * 2))


PAIRED = f"""{BEGIN} .reg .b16 %mask; .reg .pred %first, %told; .reg .b32 %home, %who;
  and.b32 %home, %rank, 1; setp.eq.and.u32 %told, %home, PARITY, %p;
  setp.eq.and.u32 %first, %rank, ISSUER, %p; mov.u16 %mask, MASK; and.b32 %home, %rank, -2;
  or.b32 %home, %home, PARITY; mapa.shared::cluster.u32 %bar, %bar, %home;
  @%told mbarrier.arrive.expect_tx.shared::cta.b64 _, [mbar], EXPECTED;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  @%first cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytesCAST
    [%s], [%map, {{0, 0}}], [%bar]TO;
  @!%told bra JOIN; L: mbarrier.try_wait.parity.shared::cta.b64 %done, [mbar], 0; @!%done bra L;
  JOIN: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mad.lo.u32 %who, %rank, 32, %tid; mad.wide.u32 %at, %who, 4, %out; mad.lo.u32 %s, %tid, 4, %s;
  ld.shared.b32 %x, [%s]; st.global.b32 [%at], %x;
"""


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize(("blocks", "issuer"), [(2, 0), (2, 1), (4, 3)])
@pytest.mark.parametrize("schedule", ALL[:2], ids=str)
def test_a_load_for_a_pair_tells_one_of_its_blocks(
    schedule: Schedule, blocks: int, issuer: int, parity: int
) -> None:
    """Of each pair one block's mbarrier counts what comes to both: 128 bytes each, of the multicast of one block."""
    source = np.arange(32, dtype=np.uint32).reshape(1, 32)
    result = np.zeros((blocks, 32), np.uint32)
    body = PAIRED.replace("CAST", ".multicast::cluster").replace("]TO", "], %mask")
    for name, value in (("ISSUER", issuer), ("PARITY", parity), ("MASK", 2**blocks - 1)):
        body = body.replace(name, str(value))
    arrays = [encoded(map_of(source, (32, 1))), result, source]
    run(
        body.replace("EXPECTED", "256"),
        arrays,
        grid=blocks,
        cluster=blocks,
        schedule=schedule,
        target="sm_100a",
    )
    assert np.array_equal(result, np.repeat(source, blocks, 0))


def test_each_block_of_a_pair_tells_the_same_one() -> None:
    """Without multicast, as CUTLASS loads for two blocks: each loads its own half, and the first one's mbarrier counts both."""
    source = np.arange(32, dtype=np.uint32).reshape(1, 32)
    result = np.zeros((2, 32), np.uint32)
    body = PAIRED.replace("CAST", "").replace("]TO", "]").replace("PARITY", "0")
    body = body.replace("%rank, ISSUER, %p", "%tid, 0, %p").replace("MASK", "0")
    arrays = [encoded(map_of(source, (32, 1))), result, source]
    for schedule in ALL[:2]:
        result[:] = 0
        run(
            body.replace("EXPECTED", "256"),
            arrays,
            grid=2,
            cluster=2,
            schedule=schedule,
            target="sm_100a",
        )
        assert np.array_equal(result, np.repeat(source, 2, 0))
    for word in ("cta_group::1.", ""):
        alone = body.replace("EXPECTED", "256").replace("cta_group::2.", word)
        with pytest.raises(FaultError, match="which is not in the block that it loads to"):
            run(alone, arrays, grid=2, cluster=2, target="sm_100a")


@pytest.mark.parametrize("schedule", ALL[:2], ids=str)
def test_a_load_outside_of_its_operand_is_named_whenever_it_comes(schedule: Schedule) -> None:
    source, result = np.zeros((8, 32), np.uint32), np.zeros((8, 32), np.uint32)
    body = '.file 1 "some/tile.py"\n' + LOAD.replace("X", "0").replace("Y", "0")
    body = body.replace("@%p cp.async.bulk", "\n.loc 1 77 3\n@%p cp.async.bulk")
    body = body.replace("L: mbarrier", "\n.loc 1 78 3\nL: mbarrier")
    with pytest.raises(FaultError, match="in no operand") as caught:
        run(body, [encoded(map_of(source, (32, 8))), result], block=256, schedule=schedule)
    assert caught.value.place.startswith("k, PTX line ")
    assert "(tile.py:77): @%p cp.async.bulk.tensor.2d.shared::cluster" in caught.value.place
    assert caught.value.place.endswith("[block (0, 0, 0) warps 0-7]")


@pytest.mark.parametrize("part", [slice(1, None), slice(0, -1)], ids=["first", "last"])
def test_the_first_and_the_last_element_of_a_box_lie_in_an_operand(part: slice) -> None:
    source, result = np.zeros(256, np.uint32), np.zeros((8, 32), np.uint32)
    body = LOAD.replace("X", "0").replace("Y", "0")
    tensor = encoded(map_of(source.reshape(8, 32), (32, 8)))
    run(body, [tensor, result, source], block=256)
    with pytest.raises(FaultError, match="in no operand"):
        run(body, [tensor, result, source[part]], block=256)
    target = np.zeros(64, np.uint32)
    tensor = encoded(map_of(target.reshape(4, 16), (16, 4)))
    body = STORE.replace("VALUE", "").replace("OPCODE", PLAIN).replace("{4, -2}", "{0, 0}")
    body = body.replace("AWAIT", "@%p cp.async.bulk.wait_group 0;")
    run(body, [tensor, target], block=64)
    with pytest.raises(FaultError, match="in no operand"):
        run(body, [tensor, target[part]], block=64)


def test_wrong_use_is_a_fault() -> None:
    source, result = np.zeros((8, 32), np.uint32), np.zeros((8, 32), np.uint32)
    body = LOAD.replace("X", "0").replace("Y", "0")
    good = encoded(map_of(source, (32, 8)))
    with pytest.raises(FaultError, match="in no operand"):
        run(body, [good, result], block=256)
    with pytest.raises(FaultError, match="no multiple of 128"):
        run(body.replace("[%s], [%map", "[%s+64], [%map"), [good, result, source], block=256)
    flat = TensorMap(source.ctypes.data, (32,), (4,), (32,), "uint32", 0, False)
    with pytest.raises(FaultError, match="2 coordinates of 1 dimensions"):
        run(body, [encoded(flat), result, source], block=256)
    narrow = encoded(map_of(source, (16, 8), 3))
    with pytest.raises(UnmodelledError, match="swizzled within 128"):
        run(body, [narrow, result, source], block=256)
    for swizzle, error in ((6, UnmodelledError), (7, FaultError)):
        with pytest.raises(error, match=r"a tensor map with .*swizzle"):
            run(body, [encoded(map_of(source, (32, 8), swizzle)), result, source], block=256)
    good[:] = 0
    with pytest.raises(FaultError, match="no tensor map at"):
        run(body, [good, result, source], block=256)
