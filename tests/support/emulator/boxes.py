"""Kernels that load and store boxes by TMA, and the tensor maps they have as arguments."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.tensor import tensor_map
from tests.emulator.tensor.tensor_map import TensorMap

BEGIN = """
  .reg .b32 %tid, %bar, %s, %x, %y, %rank; .reg .b64 %map, %out, %at; .reg .pred %p, %done;
  .shared .align 8 .b64 mbar; .shared .align 1024 .b8 tile[4096];
  mov.u32 %tid, %tid.x; mov.u32 %bar, mbar; mov.u32 %s, tile; setp.eq.u32 %p, %tid, 0;
  mov.u32 %rank, %cluster_ctarank; ld.param.u64 %map, [p0]; ld.param.u64 %out, [p1];
  @%p mbarrier.init.shared::cta.b64 [%bar], 1;
"""
WAIT = "L: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra L;"


def encoded(tensor: TensorMap) -> Array:
    """Return a tensor map's bytes, aligned."""
    room = np.zeros(256, np.uint8)
    begin = -room.ctypes.data % 64
    result = room[begin : begin + 128]
    result[:] = np.frombuffer(tensor_map.encoded(tensor), np.uint8)
    return result


def map_of(array: Array, box: tuple[int, int], swizzle: int = 0, *, nan: bool = False) -> TensorMap:
    """Return the map of a matrix; ``box`` is (columns, rows)."""
    rows, columns = array.shape
    item, name = array.itemsize, str(array.dtype)
    return TensorMap(
        array.ctypes.data, (columns, rows), (item, columns * item), box, name, swizzle, nan
    )


LOAD = f"""{BEGIN}
  bar.sync 0;
  @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 1024;
  @%p cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%map, {{X, Y}}], [%bar];
  {WAIT}
  mad.wide.u32 %at, %tid, 4, %out; mad.lo.u32 %s, %tid, 4, %s;
  ld.shared.b32 %x, [%s]; st.global.b32 [%at], %x;
"""


STORE = f"""{BEGIN}
  mad.lo.u32 %y, %tid, 4, %s; add.u32 %x, %tid, 1; VALUE st.shared.b32 [%y], %x;
  fence.proxy.async.shared::cta; bar.sync 0;
  @%p OPCODE [%map, {{4, -2}}], [%s];
  @%p cp.async.bulk.commit_group; AWAIT
"""
PLAIN = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
