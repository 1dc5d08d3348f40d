"""Which configurations the hardware, CUTLASS and the registers allow, or the reason why not."""

from __future__ import annotations

import math

from inductor_plugin.templates.cutlass.config import (
    BITS,
    OUTPUTS,
    TMA_BYTES,
    Element,
    GemmConfig,
    Schedule,
    full_alignment,
)

SCHEDULES: dict[str, tuple[Schedule, ...]] = {
    "sm_80": ("multistage",),
    "sm_90a": ("pingpong", "cooperative", "stream_k"),
    "sm_100a": ("one_sm", "two_sm"),
}

SM80_WARPS: dict[tuple[int, int], tuple[int, int]] = {
    (128, 256): (2, 4),
    (256, 128): (4, 2),
    (128, 128): (2, 2),
    (128, 64): (2, 2),
    (64, 128): (2, 2),
    (64, 64): (2, 2),
    (64, 256): (1, 4),
    (256, 64): (4, 1),
}
"""Warps along (m, n) of an sm_80 tile, as cutlass_library pairs them (generator.py, 4.2)."""

SM80_SHARED_BYTES = 99 * 1024
"""Shared memory of a block on every device from sm_80 to sm_89; sm_80 itself has 163 KB."""

SM90_SHARED_BYTES = 227 * 1024

_BARRIER_BYTES = 2048
"""Shared memory for barriers, the scheduler's responses and alignment."""

_SM90_TF32_SPILLS: dict[tuple[Schedule, tuple[int, int], str], int] = {
    ("cooperative", (256, 128), "nn"): 104,
    ("cooperative", (256, 128), "nt"): 152,
    ("cooperative", (256, 128), "tt"): 144,
    ("cooperative", (128, 256), "nt"): 152,
    ("stream_k", (128, 256), "nt"): 264,
}
"""Bytes ptxas (CUDA 13.0) spills of each thread of a TF32 kernel, by schedule, tile and orders of A
and B, without a bias in a cluster of 2x1: operands not contiguous along K are transposed in registers."""

_SM80_NARROW_SPILLS = "272 to 364"
"""The same of an sm_80 tile of 128x128 with rows of 128 bytes of K in two stages, depending on the orders."""


def why_not_buildable(config: GemmConfig) -> str | None:
    """Return why a configuration has no kernel, or None if it has one."""
    rules = (
        _schedule,
        _types,
        _layouts,
        _alignments,
        _meaning,
        _epilogue,
        _tree,
        _grouped,
        _tile,
        _shared,
        _spills,
    )
    return next(filter(None, (rule(config) for rule in rules)), None)


def _schedule(config: GemmConfig) -> str | None:
    if config.schedule not in SCHEDULES[config.arch]:
        names = ", ".join(SCHEDULES[config.arch])
        return f"{config.arch} has no schedule {config.schedule!r}; it has {names}"
    if config.is_fp8 and config.arch == "sm_80":
        return "sm_80 kernels are built for 16-bit floats, TF32 and int8, not for fp8"
    if config.a == "s8" and config.arch == "sm_100a":
        return "sm_100a int8 kernels are not offered"
    return None


def _types(config: GemmConfig) -> str | None:
    if config.a not in OUTPUTS:
        return f"no tensor core multiplies {config.a}; use one of {', '.join(OUTPUTS)}"
    if config.a != config.b and not (config.is_fp8 and config.b in ("e4m3", "e5m2")):
        return f"A is {config.a} and B is {config.b}; only fp8 types can be mixed"
    if config.epilogue is None and config.d not in OUTPUTS[config.a]:
        return f"{config.a} inputs give {', '.join(OUTPUTS[config.a])}, not {config.d}"
    expected = "s32" if config.a == "s8" else "f32"
    if config.accumulator != expected:
        return f"{config.a} is summed in {expected}, not {config.accumulator}"
    return None


def _layouts(config: GemmConfig) -> str | None:
    tn = config.layout_a == "row" and config.layout_b == "column"
    if BITS[config.a] == 8 and not tn:
        return (
            f"{config.a} tensor cores want K contiguous in both inputs (A row-major, B column-major), "
            f"A is {config.layout_a}-major and B {config.layout_b}-major"
        )
    return None


def _alignments(config: GemmConfig) -> str | None:
    operands: tuple[tuple[str, Element, int], ...] = (
        ("A", config.a, config.align_a),
        ("B", config.b, config.align_b),
        ("C", config.c, config.align_c),
        ("D", config.d, config.align_d),
    )
    for name, element, align in operands:
        if align & (align - 1) or not 1 <= align <= full_alignment(element):
            return (
                f"alignment of {name} is {align} elements of {element}; use a power of two up to "
                f"{full_alignment(element)}"
            )
    if config.arch == "sm_80":
        return _sm80_alignments(config)
    for name, element, align in operands[:2]:
        if align < full_alignment(element):
            return (
                f"{config.arch} loads {name} by TMA, which needs {TMA_BYTES} bytes of alignment, "
                f"not {align * BITS[element] // 8}"
            )
    return None


def _sm80_alignments(config: GemmConfig) -> str | None:
    narrow = min(config.align_a * BITS[config.a], config.align_b * BITS[config.b]) // 8
    if config.a == "s8" and narrow < 4:
        return f"sm_80 int8 kernels need 4 bytes of alignment, not {narrow}"
    if narrow < 4 and config.stages != 2:
        return (
            f"cp.async copies 4, 8 or 16 bytes, not {narrow}; only a kernel of two stages copies "
            "through registers"
        )
    return None


def _meaning(config: GemmConfig) -> str | None:
    """Return why an epilogue is undefined for its types."""
    if config.bias == "none" and config.epilogue is None and config.c != config.d:
        return f"without a bias C has D's type, {config.d}, not {config.c}"
    if config.scale != "none" and not config.is_fp8:
        return f"scales belong to fp8 inputs, A is {config.a}"
    if config.a == "s8" and config.bias in ("row", "column"):
        return "int8 sums stay whole numbers, and a bias has D's shape"
    if config.a == "s8" and config.bias == "full" and config.c != "s32":
        return f"the bias of an int8 product is s32, not {config.c}"
    return None


def _epilogue(config: GemmConfig) -> str | None:
    """Return why a family of kernels cannot do an epilogue."""
    if config.arch == "sm_80":
        if config.bias == "column":
            return "sm_80 epilogues have no column bias"
        if config.c != config.d:
            return f"an sm_80 epilogue reads its bias as {config.d}, D's type, not {config.c}"
        if config.align_c < config.align_d and config.bias == "full":
            return (
                f"an sm_80 epilogue reads C as wide as it writes D, {config.align_d} elements; C is "
                f"aligned to {config.align_c}"
            )
        return None
    plain = config.scale == "none" and config.bias in ("none", "full")
    simple = plain and config.schedule in ("pingpong", "cooperative")
    if config.tma_epilogue or simple:
        return None
    rows = f"rows that are not {TMA_BYTES}-byte aligned; D is aligned to {config.align_d} elements of {config.d}"
    sums = "the sums of TF32 with row-major A and B, which are those of D transposed"
    written = sums if config.transposed_epilogue else rows
    return (
        f"only pingpong and cooperative kernels without scales or a broadcast bias write {written}"
    )


def _tree(config: GemmConfig) -> str | None:
    """Return why a kernel cannot have the tree of its epilogue."""
    evt = config.epilogue
    if evt is None:
        return None
    source = config.d if evt.source is None else evt.operands[evt.source].element
    plain = config.schedule != "stream_k" and not config.grouped and config.tma_epilogue
    many = bool(evt.aux) or any(operand.kind == "full" for operand in evt.operands)
    rules = (
        (config.arch == "sm_80", "sm_80 kernels have no epilogue of visitors"),
        (
            not plain,
            "only pingpong, cooperative, one_sm and two_sm kernels that write D by TMA fuse more",
        ),
        (
            config.bias != "none" or config.scale != "none",
            "a bias and scales beside an epilogue are operands of it",
        ),
        (
            (config.c, config.d) != (source, evt.result.element),
            f"its epilogue reads {source} and writes {evt.result.element}, not {config.c} and {config.d}",
        ),
        (
            many and config.arch == "sm_100a",
            "sm_100a kernels read one operand as large as D and write D alone",
        ),
    )
    return next((reason for wrong, reason in rules if wrong), None)


def _grouped(config: GemmConfig) -> str | None:
    """Return why a kernel cannot work on groups of rows."""
    if not config.grouped:
        return None
    if config.arch != "sm_90a" or config.schedule == "stream_k":
        return f"grouped kernels are sm_90a pingpong or cooperative, not {config.arch} {config.schedule}"
    if config.layout_a != "row":
        return "the rows of a group must lie together, A is column-major"
    if config.bias != "none" or config.scale != "none":
        return "grouped kernels have no bias and no scales"
    if not config.tma_epilogue or config.a in ("tf32", "s8"):
        return f"grouped kernels write {config.d} by TMA from 16-bit floats or fp8, not from {config.a}"
    return None


def _tile(config: GemmConfig) -> str | None:
    if config.arch == "sm_80":
        return _sm80_tile(config)
    return _sm90_tile(config) if config.arch == "sm_90a" else _sm100_tile(config)


def _sm80_tile(config: GemmConfig) -> str | None:
    m, n, k = config.tile
    if (m, n) not in SM80_WARPS:
        return f"no arrangement of warps is known for an sm_80 tile of {m}x{n}"
    if config.cluster != (1, 1, 1):
        return "sm_80 has no clusters"
    if config.stages < 2:
        return f"an sm_80 kernel names its stages, 2 or more, not {config.stages}"
    row_bytes = k * BITS[config.a] // 8
    if row_bytes not in (32, 64, 128):
        return f"a tile row is 32, 64 or 128 bytes of K, not {row_bytes}"
    held = config.stages * (m + n) * row_bytes
    if held > SM80_SHARED_BYTES:
        return f"the tiles take {held} bytes of shared memory, a block has {SM80_SHARED_BYTES}"
    return None


def _sm90_tile(config: GemmConfig) -> str | None:
    m, n, _ = config.tile
    wide = config.schedule != "pingpong"
    if m % (128 if wide else 64) or not 64 <= m <= 256:
        return f"{config.schedule} tiles have {'128 or 256' if wide else '64 or 128'} rows, not {m}"
    if n % 16 or not 16 <= n <= 256:
        return f"wgmma tiles have 16, 32 ... 256 columns, not {n}"
    # Slow fp8 accumulation keeps a second set: 128x128 pingpong spilled 264 bytes a thread.
    sets = 2 if config.is_fp8 and not config.fast_accumulation else 1
    sums = sets * m * n // (256 if wide else 128)
    if sums > 128:
        return f"each thread would hold {sums} sums of its tile; more than 128 spill"
    return _cluster(config) or _sm90_depth(config)


def _sm90_depth(config: GemmConfig) -> str | None:
    m, n, k = config.tile
    row_bytes = k * BITS[config.a] // 8
    if row_bytes not in (64, 128, 256):
        return f"a tile row is 64, 128 or 256 bytes of K, not {row_bytes}"
    if 2 * (m + n) * row_bytes > SM90_SHARED_BYTES:
        return (
            f"two stages of {m}x{n}x{k} do not fit into {SM90_SHARED_BYTES} bytes of shared memory"
        )
    return None


def _shared(config: GemmConfig) -> str | None:
    """Return why an epilogue leaves too little shared memory for the tiles of A and B."""
    if config.epilogue is None or config.arch != "sm_90a":
        return None
    m, n, k = config.tile
    stage = (m * BITS[config.a] + n * BITS[config.b]) * k // 8
    used = epilogue_bytes(config)
    if used + 2 * stage + _BARRIER_BYTES > SM90_SHARED_BYTES:
        return (
            f"its epilogue takes {used} bytes of shared memory, which leaves too little of "
            f"{SM90_SHARED_BYTES} for two stages of {stage}"
        )
    return None


def epilogue_bytes(config: GemmConfig) -> int:
    """Return the shared memory an sm_90a kernel's epilogue takes (sm90_builder.inl, CUTLASS 4.2).

    D and operands as large as D pass through shared memory in parts of a tile, several in flight.
    """
    evt = config.epilogue
    m, n, _ = config.tile
    wide = 64 if BITS[config.d] == 8 and n % 64 == 0 and config.schedule == "pingpong" else 32
    part_n = math.gcd(min(wide, n), n)
    part = min(64 if config.schedule == "pingpong" else 128, m) * part_n
    parts = m * n // part
    read = config.reads_c
    shared = read and BITS[config.c] == BITS[config.d] > 8
    stages_d = min(parts, 2)
    stages_c = max(min(parts, 4), stages_d + 1) if shared else min(parts, 4)
    bits = (stages_c if shared else stages_d) * BITS[config.d] * part
    if read and not shared:
        bits += stages_c * BITS[config.c] * part
    if evt is not None:
        bits += sum(
            stages_c * BITS[operand.element] * part
            if operand.kind == "full"
            else n * BITS[operand.element] * (operand.kind == "row")
            for operand in evt.operands
        )
        bits += sum(stages_d * BITS[output.element] * part for output in evt.aux)
    return bits // 8


def _sm100_tile(config: GemmConfig) -> str | None:
    m, n, _ = config.tile
    if reason := _cluster(config):
        return reason
    rows = (64, 128) if config.schedule == "one_sm" else (128, 256)
    if m not in rows:
        return f"{config.schedule} tiles have {rows[0]} or {rows[1]} rows, not {m}"
    if n % 16 or not 16 <= n <= 256:
        return f"tcgen05 tiles have 16, 32 ... 256 columns, not {n}"
    if config.schedule == "two_sm" and config.cluster[0] % 2:
        return f"two_sm needs an even number of blocks along m, not {config.cluster[0]}"
    return None


def _cluster(config: GemmConfig) -> str | None:
    x, y, z = config.cluster
    if z != 1 or x * y > 8 or x & (x - 1) or y & (y - 1):
        return f"a cluster has 1, 2, 4 or 8 blocks along m and n, not {config.cluster}"
    return None


def _spills(config: GemmConfig) -> str | None:
    """Return how much a kernel is known to spill; it would be compiled and then not measured."""
    spilled: int | str | None = None
    if config.arch == "sm_90a" and config.a == "tf32":
        spilled = _SM90_TF32_SPILLS.get((config.schedule, config.tile[:2], config.order))
    elif config.arch == "sm_80" and config.stages == 2 and config.tile[:2] == (128, 128):
        spilled = _SM80_NARROW_SPILLS if config.tile[2] * BITS[config.a] == 128 * 8 else None
    return f"each thread would spill {spilled} bytes" if spilled else None
