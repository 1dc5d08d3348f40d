"""Tensor maps as the driver encodes them, and as kernels change them."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import FaultError
from tests.emulator.machine.schedule import WATCHED
from tests.emulator.races.touched import RaceError
from tests.emulator.snippet import run
from tests.emulator.tensor import tensor_map
from tests.emulator.tensor.tensor_map import TensorMap
from tests.support.emulator.boxes import BEGIN, LOAD, PLAIN, STORE, encoded, map_of


def test_an_encoded_map_is_read_back_and_no_part_of_it() -> None:
    tensor = TensorMap(0x7000, (33, 5, 2), (2, 80, 400), (32, 4, 1), "bfloat16", 2, True)
    room = np.zeros(192, np.uint8)
    begin = -room.ctypes.data % 64
    room[begin : begin + 128] = np.frombuffer(tensor_map.encoded(tensor), np.uint8)
    assert tensor_map.at(room.ctypes.data + begin) == tensor
    for part in range(0, 128, 16):
        raw = bytearray(tensor_map.encoded(tensor))
        raw[part : part + 16] = b"\xff" * 16  # as memory is before it is written
        room[begin : begin + 128] = np.frombuffer(raw, np.uint8)
        with pytest.raises(FaultError, match="no tensor map at"):
            tensor_map.at(room.ctypes.data + begin)


CHANGE = f"""{BEGIN} .reg .b64 %new, %g; .reg .b32 %m, %w; .shared .align 128 .b8 copy[128];
  ld.param.u64 %new, [p2]; mov.u32 %m, copy; setp.lt.u32 %done, %tid, 32;
  mad.wide.u32 %g, %tid, 4, %map; mad.lo.u32 %w, %tid, 4, %m;
  @%done ld.global.b32 %x, [%g]; @%done st.shared.b32 [%w], %x; bar.sync 0;
  REPLACE
  bar.sync 0;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%map], [%m], 128;
  bar.sync 0;
"""
ADDRESS = "@%p tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%m], %new;"


def test_a_tensor_map_is_changed_on_the_device() -> None:
    first = np.zeros((8, 32), np.uint32)
    source = np.arange(8 * 32, dtype=np.uint32).reshape(8, 32) + 5
    result, maps = np.zeros((8, 32), np.uint32), encoded(map_of(first, (32, 8)))
    size = "@%p tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%m], 1, 6;"
    load = LOAD.removeprefix(BEGIN).replace("X", "0").replace("Y", "0")
    run(CHANGE.replace("REPLACE", ADDRESS + size) + load, [maps, result, source], block=256)
    assert np.array_equal(result[:6], source[:6])
    assert (result[6:] == 0).all()


@pytest.mark.parametrize("await_it", ["", "@%p cp.async.bulk.wait_group.read 0;"])
def test_a_tensor_map_is_not_changed_while_a_store_may_read_it(await_it: str) -> None:
    target, other = np.zeros((8, 32), np.uint32), np.zeros((8, 32), np.uint32)
    maps = encoded(map_of(target, (32, 8)))
    body = STORE.replace("OPCODE", PLAIN).replace("VALUE", "").replace("AWAIT", await_it)
    body = body.replace("{4, -2}", "{0, 0}") + CHANGE.removeprefix(BEGIN).replace(
        "REPLACE", ADDRESS
    )
    if await_it:
        run(body, [maps, target, other], block=256, schedule=WATCHED)
        return
    with pytest.raises(RaceError, match=r"writes global memory that a bulk store of .* reads"):
        run(body, [maps, target, other], block=256, schedule=WATCHED)


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        (f"add.u64 %new, %new, 8; {ADDRESS}", "address"),
        (f"mov.u64 %new, 0; {ADDRESS}", "address"),
        ("@%p tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%m], 0, 72;", "stride"),
        ("@%p tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%m], 1, 0;", "size"),
        ("@%p tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%m], 0, 257;", "box"),
        ("@%p tensormap.replace.tile.rank.shared::cta.b1024.b32 [%m], 5;", "rank"),
        ("@%p tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%m], 1, 0;", "step"),
        ("@%p tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%m], 0, 9;", "step"),
    ],
)
def test_a_tensor_map_is_not_changed_to_what_the_driver_refuses(replaced: str, reason: str) -> None:
    source, result = np.zeros((8, 32), np.uint32), np.zeros((8, 32), np.uint32)
    load = LOAD.removeprefix(BEGIN).replace("X", "0").replace("Y", "0")
    maps = encoded(map_of(source, (32, 8)))
    with pytest.raises(FaultError, match=f"a tensor map with a {reason} that cuTensorMapEncode"):
        run(CHANGE.replace("REPLACE", replaced) + load, [maps, result, source], block=256)


def test_who_copies_a_map_has_an_order_with_who_changes_it() -> None:
    """All warps copy it; or the first one alone, which has changed it."""
    result, first, new = (np.zeros((8, 32), np.uint32) for _ in range(3))
    body = CHANGE.replace("REPLACE", ADDRESS)
    hasty = body.replace("bar.sync 0;\n  tensormap", "tensormap")
    assert hasty != body

    def changed(text: str) -> None:
        maps = encoded(map_of(first, (32, 8)))
        run(text, [maps, result, new], block=64, schedule=WATCHED)

    changed(body)
    with pytest.raises(RaceError, match=r"warps 1 reads .* warps 0 wrote.* tensormap\.replace"):
        changed(hasty)
    changed(hasty.replace("  tensormap", "  @%done tensormap"))
