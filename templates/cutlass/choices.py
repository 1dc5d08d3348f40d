"""Which CUTLASS kernels to try for a product, the most promising first.

    GemmFacts, device ─► choices ─► (GemmConfig, Launch), ...      or the reason why there are none

The order depends only on tiles and waves; the ranking in `order` may change it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.config import BITS, Arch, GemmConfig, LaunchOptions, Schedule
from inductor_plugin.templates.cutlass.limits import SM80_SHARED_BYTES, why_not_buildable
from inductor_plugin.templates.cutlass.problem import GemmFacts

LIMIT = 16
"""Most choices of one problem. A kernel takes about 8 s to compile, in a batch."""

_MULTIPROCESSORS: dict[str, int] = {
    arch: target(name).multiprocessors
    for arch, name in (("sm_80", "A100"), ("sm_90a", "H100"), ("sm_100a", "B200"))
}
"""Multiprocessors of A100, H100 SXM and B200; only the order of choices depends on it."""

ALL = 1000
"""More kernels than exist: the order decides which are tried."""

_Shape = tuple[Schedule, tuple[int, int], tuple[int, int]]

_SM90: tuple[_Shape, ...] = (
    ("cooperative", (128, 256), (2, 1)),
    ("cooperative", (256, 128), (2, 1)),
    ("cooperative", (256, 128), (1, 2)),
    ("cooperative", (128, 128), (2, 1)),
    ("pingpong", (128, 128), (2, 1)),
    ("pingpong", (128, 128), (1, 2)),
    ("pingpong", (128, 128), (1, 1)),
    ("pingpong", (64, 256), (1, 2)),
    ("pingpong", (64, 256), (1, 1)),
    ("pingpong", (64, 192), (1, 1)),
    ("pingpong", (64, 128), (1, 2)),
    ("pingpong", (64, 128), (1, 1)),
    ("pingpong", (128, 64), (2, 1)),
    ("pingpong", (64, 64), (1, 1)),
    ("pingpong", (64, 32), (1, 1)),
    ("pingpong", (64, 16), (1, 1)),
    ("stream_k", (128, 256), (2, 1)),
    ("stream_k", (128, 128), (2, 1)),
    ("stream_k", (128, 128), (1, 1)),
    ("stream_k", (128, 64), (1, 1)),
)
_SM100: tuple[_Shape, ...] = (
    ("two_sm", (256, 256), (2, 1)),
    ("two_sm", (256, 128), (2, 1)),
    ("two_sm", (256, 256), (2, 2)),
    ("two_sm", (256, 192), (2, 1)),
    ("two_sm", (128, 256), (2, 1)),
    ("one_sm", (128, 256), (1, 1)),
    ("one_sm", (128, 128), (1, 1)),
    ("one_sm", (128, 64), (1, 1)),
    ("one_sm", (64, 128), (1, 1)),
    ("one_sm", (64, 64), (1, 1)),
)
_SM80: tuple[_Shape, ...] = tuple(
    ("multistage", tile, (1, 1))
    for tile in ((128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64))
)
_SHAPES: dict[Arch, tuple[_Shape, ...]] = {"sm_80": _SM80, "sm_90a": _SM90, "sm_100a": _SM100}


@dataclass(frozen=True)
class Choice:
    """One kernel and how it is started.

    Attributes:
        config: The compiled kernel.
        launch: How it is started.
    """

    config: GemmConfig
    launch: LaunchOptions

    @property
    def name(self) -> str:
        """A name that is unique among the choices of a problem."""
        return "_".join(filter(None, (self.config.name, self.launch.name)))


def family(arch: str) -> Arch:
    """Return the newest family of kernels a device runs.

    Args:
        arch: As nvcc calls the device: ``sm_80``, ``sm_89``, ``sm_90a``, ``sm_100a``, ``sm_120`` ...
    """
    for known in get_args(Arch):
        if known == arch:
            return known
    return "sm_80"


def choices(facts: GemmFacts, arch: str, limit: int = LIMIT) -> tuple[Choice, ...] | str:
    """Return the kernels to try, best first, or why there are none.

    Newer devices than sm_80 fall back to sm_80 kernels where TMA cannot read an operand.

    Args:
        facts: The product.
        arch: The device, as in `family`.
        limit: How many at most.
    """
    newest = family(arch)
    fp8 = facts.a in ("e4m3", "e5m2")
    if fp8 and newest == "sm_80":
        return (
            f"no CUTLASS kernel for fp8 on {arch} here: the 2.x kernels are built for 16-bit floats, "
            "TF32 and int8"
        )
    reasons: list[str] = []
    for kernels in (newest,) if fp8 else dict.fromkeys((newest, "sm_80")):
        offered = [
            choice for shape in _SHAPES[kernels] for choice in _variants(facts, kernels, shape)
        ]
        fitting = [choice for choice in offered if why_not_buildable(choice.config) is None]
        if fitting:
            return tuple(sorted(fitting, key=lambda choice: _cost(facts, choice))[:limit])
        reasons.extend(filter(None, (why_not_buildable(choice.config) for choice in offered[:1])))
    return "; ".join(dict.fromkeys(reasons))


def _variants(facts: GemmFacts, arch: Arch, shape: _Shape) -> Iterable[Choice]:
    """Return the choices of one tile: several launches, on sm_80 several lengths of K."""
    schedule, (tile_m, tile_n), (cluster_m, cluster_n) = shape
    row_bytes = (128, 64) if arch == "sm_80" else (128,)
    align_c, align_d = _epilogue_alignments(facts, arch)
    for length in row_bytes:
        k = length * 8 // BITS[facts.a]
        stages = _stages(facts, (tile_m, tile_n, k)) if arch == "sm_80" else 0
        if stages == 2 and (not _narrow(facts) or tile_m * tile_n > 128 * 128):
            # Two stages copy through registers: only rows that cp.async cannot copy need that, and a
            # tile of 128x256 spills 40 bytes a thread.
            continue
        config = GemmConfig(
            arch=arch,
            tile=(tile_m, tile_n, k),
            cluster=(cluster_m, cluster_n, 1),
            schedule=schedule,
            a=facts.a,
            b=facts.b,
            c=facts.c,
            d=facts.d,
            accumulator="s32" if facts.a == "s8" else "f32",
            layout_a=facts.layout_a,
            layout_b=facts.layout_b,
            align_a=facts.align_a,
            align_b=facts.align_b,
            align_c=align_c,
            align_d=align_d,
            bias=facts.bias,
            scale=facts.scale,
            stages=stages,
            fast_accumulation=facts.fast_accumulation or not facts.a.startswith("e"),
            grouped=facts.grouped,
        )
        for launch in _launches(facts, config):
            yield Choice(config, launch)


def _epilogue_alignments(facts: GemmFacts, arch: Arch) -> tuple[int, int]:
    """Return the alignments of C and D: an sm_80 epilogue reads a bias as wide as it writes D."""
    if arch != "sm_80" or facts.bias == "none":
        return facts.align_c, facts.align_d
    both = min(facts.align_c, facts.align_d)
    return both, both


def _stages(facts: GemmFacts, tile: tuple[int, int, int]) -> int:
    """Return the stages of an sm_80 kernel: up to five, as shared memory allows."""
    if _narrow(facts):
        return 2
    m, n, k = tile
    return max(2, min(5, SM80_SHARED_BYTES // ((m + n) * k * BITS[facts.a] // 8)))


def _narrow(facts: GemmFacts) -> bool:
    """Return whether an input's rows start at less than the 4 bytes cp.async needs."""
    return min(facts.align_a * BITS[facts.a], facts.align_b * BITS[facts.b]) < 32


def _launches(facts: GemmFacts, config: GemmConfig) -> tuple[LaunchOptions, ...]:
    """Return the launches of a kernel: K is split if D has too few tiles to fill the device."""
    if config.arch == "sm_80":
        idle = _tiles(facts, config) * 2 <= _MULTIPROCESSORS["sm_80"]
        # Its split-K sums parts in D's type: two parts cost one more rounding, more cost accuracy.
        cut = idle and facts.batch == 1 and facts.k >= 4 * 1024 and facts.d in ("f32", "s32")
        return (LaunchOptions(), LaunchOptions(split_k=4)) if cut else (LaunchOptions(),)
    if facts.grouped:
        return (LaunchOptions(),)  # the scheduler of groups has its own order
    if config.schedule == "stream_k" and facts.batch == 1:
        idle = _tiles(facts, config) * 2 <= _MULTIPROCESSORS[config.arch]
        parts = facts.k // (4 * config.tile[2])
        return (
            (LaunchOptions(), LaunchOptions(split_k=min(8, parts)))
            if idle and parts > 1
            else (LaunchOptions(),)
        )
    large = _tiles(facts, config) > 8 * _MULTIPROCESSORS[config.arch]
    return (LaunchOptions(), LaunchOptions(swizzle=8)) if large else (LaunchOptions(),)


def _tiles(facts: GemmFacts, config: GemmConfig) -> int:
    m, n, _ = config.tile
    rows = facts.m / facts.batch if facts.grouped else facts.m
    return math.ceil(rows / m) * math.ceil(facts.n / n) * facts.batch


def _cost(facts: GemmFacts, choice: Choice) -> tuple[float, str]:
    """Return a relative time that orders choices: waves of tiles, small tiles less efficient.

    A tile of m x n loads m + n rows for m * n sums: its time has a part for each.
    """
    config, launch = choice.config, choice.launch
    m, n, _ = config.tile
    blocks = _MULTIPROCESSORS[config.arch] // (2 if config.schedule == "two_sm" else 1)
    waves: float = math.ceil(_tiles(facts, config) / blocks)
    if launch.split_k > 1:
        waves = math.ceil(_tiles(facts, config) * launch.split_k / blocks) / launch.split_k
    elif config.schedule == "stream_k":
        # A block's part of K is worth its start from eight steps on.
        waves = max(_tiles(facts, config) / blocks, min(1.0, 8 * config.tile[2] / facts.k))
    time = waves * (m * n + 32 * (m + n))
    # The parts of a split product are summed through memory; a wide cluster waits for its slowest.
    extra = 1.15 if config.schedule == "stream_k" else 1.0
    shared = 1.0 if config.cluster == (1, 1, 1) else 0.95
    swizzled = 0.99 if launch.swizzle > 1 else 1.0
    short = 1.02 if config.tile[2] * BITS[config.a] // 8 < 128 else 1.0
    return time * extra * shared * swizzled * short, choice.name
