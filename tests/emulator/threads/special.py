"""Special registers: where a thread is, and what it runs on."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import time

import numpy as np

from tests.emulator.arithmetic.arrays import U64, Array
from tests.emulator.fault import UnmodelledError
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import Extent, Lanes

_AXES = {"x": 0, "y": 1, "z": 2}
_MASK = U64(0xFFFFFFFF)


class SpecialRegisters:
    """The special registers of a wave, each as an array of all lanes when first read."""

    def __init__(self, lanes: Lanes, shared_bytes: int, multiprocessors: int) -> None:
        self._lanes, self._shared_bytes, self._multiprocessors = (
            lanes,
            shared_bytes,
            multiprocessors,
        )
        self._known: dict[str, Array] = {}

    def read(self, name: str, group: Group) -> Array:
        """Return a register (``tid.x``) for each lane, as uint64.

        Raises:
            UnmodelledError: There is no such register here.
        """
        if name in ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo"):
            return np.full(group.n, time.perf_counter_ns(), U64)
        if name not in self._known:
            self._known[name] = self._compute(name)
        key = f"%{name}"
        if key not in group.cache:
            group.cache[key] = self._known[name][group.s]
        return group.cache[key]

    def _compute(self, name: str) -> Array:
        lanes = self._lanes
        base, _, axis = name.partition(".")
        if axis in _AXES:
            return self._along(base, _AXES[axis])
        if base.startswith("lanemask_"):
            return _lane_mask(base.removeprefix("lanemask_"), lanes.count)
        whole = {
            "nwarpid": lanes.shape.warps,
            "cluster_nctarank": lanes.shape.cluster_size,
            "is_explicit_cluster": int(lanes.shape.cluster_size > 1),
            "nsmid": self._multiprocessors,
            "dynamic_smem_size": self._shared_bytes,
            "total_smem_size": self._shared_bytes,
        }
        if base in whole:
            return np.full(lanes.count, whole[base], U64)
        if base == "laneid":
            return (np.arange(lanes.count) & 31).astype(U64)
        if base == "warpid":
            return (lanes.thread >> 5).astype(U64)
        if base == "cluster_ctarank":
            return lanes.rank[lanes.block].astype(U64)
        if base == "smid":
            return (lanes.block % self._multiprocessors).astype(U64)
        raise UnmodelledError(f"the special register %{name} is not known")

    def _along(self, base: str, axis: int) -> Array:
        lanes, shape = self._lanes, self._lanes.shape
        extents: dict[str, Extent] = {
            "ntid": shape.block,
            "nctaid": shape.grid,
            "cluster_nctaid": shape.cluster,
            "nclusterid": _divided(shape.grid, shape.cluster),
        }
        if base in extents:
            return np.full(lanes.count, extents[base][axis], U64)
        if base == "tid":
            x, y, _ = shape.block
            thread = lanes.thread
            return (thread % x, thread // x % y, thread // (x * y))[axis].astype(U64)
        position = lanes.position[lanes.block, axis]
        if base == "ctaid":
            return position.astype(U64)
        if base == "cluster_ctaid":
            return (position % shape.cluster[axis]).astype(U64)
        if base == "clusterid":
            return (position // shape.cluster[axis]).astype(U64)
        raise UnmodelledError(f"the special register %{base} is not known")


def _divided(a: Extent, b: Extent) -> Extent:
    return a[0] // b[0], a[1] // b[1], a[2] // b[2]


def _lane_mask(which: str, count: int) -> Array:
    own = U64(1) << (np.arange(count) & 31).astype(U64)
    below = own - U64(1)
    masks = {"lt": below, "le": below | own, "eq": own, "ge": ~below, "gt": ~(below | own)}
    return masks[which] & _MASK
