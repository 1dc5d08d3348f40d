"""The cases of CUTLASS's products: each family of kernels at the sizes, strides and types that exercise its edges."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inductor_plugin.templates.cutlass.config import Element, GemmConfig
from inductor_plugin.templates.cutlass.gemm import RASTERS
from tests.emulator.kernels.gemm import Case


@dataclass(frozen=True)
class Product:
    """A case and where it runs.

    Attributes:
        case: The kernel and its operands.
        gpu: Name of the GPU.
    """

    case: Case
    gpu: str


SM90 = GemmConfig(
    "sm_90a", (64, 64, 64), (1, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
"""The smallest kernel of two warp groups: what varies is beside the tile."""
COOPERATIVE = replace(SM90, schedule="cooperative", tile=(128, 64, 64))
SM80 = replace(SM90, arch="sm_80", schedule="multistage", tile=(64, 64, 32), stages=3)
SM100 = replace(SM90, arch="sm_100a", schedule="one_sm", tile=(128, 64, 64))
TWO_SM = replace(SM100, schedule="two_sm", tile=(128, 64, 64), cluster=(2, 1, 1))


def _fp8(config: GemmConfig) -> GemmConfig:
    tile = (*config.tile[:2], 128)
    return replace(config, tile=tile, a="e4m3", b="e4m3", align_a=16, align_b=16)


def _int8(config: GemmConfig, depth: int) -> GemmConfig:
    return replace(
        config,
        tile=(*config.tile[:2], depth),
        a="s8",
        b="s8",
        c="s32",
        d="s32",
        accumulator="s32",
        align_a=16,
        align_b=16,
        align_c=4,
        align_d=4,
    )


def _tf32(config: GemmConfig, depth: int) -> GemmConfig:
    tile = (*config.tile[:2], depth)
    wide: Element = "f32"
    return replace(
        config, tile=tile, a="tf32", b="tf32", c=wide, d=wide, align_a=4, align_b=4, align_d=4
    )


def _f16(config: GemmConfig) -> GemmConfig:
    return replace(config, a="f16", b="f16", c="f16", d="f16")


def _orders(config: GemmConfig) -> dict[str, GemmConfig]:
    """Return the three orders of operands beside ``tn``, each with another type."""
    return {
        "nn": replace(config, layout_a="column"),
        "tt": replace(config, layout_b="row"),
        "nt, f16": replace(_f16(config), layout_a="column", layout_b="row"),
    }


def _sm80() -> dict[str, Product]:
    narrow = replace(SM80, stages=2, align_a=1, align_b=1, align_c=1, align_d=1)
    four = {"align_a": 4, "align_b": 4, "align_c": 4, "align_d": 4}
    row = replace(_f16(SM80), bias="row", **four)
    full = replace(SM80, bias="full")
    tf32 = replace(_tf32(SM80, 16), bias="full", stages=4, align_c=4)
    whole = replace(_int8(SM80, 64), bias="full")
    cases = {
        **{name: Case(config, 72, 136, 104) for name, config in _orders(SM80).items()},
        "odd": Case(replace(narrow, layout_b="row"), 67, 35, 41),
        "odd, A by columns": Case(replace(narrow, layout_a="column"), 33, 67, 129, alpha=-0.5),
        "bias of a row, 8 bytes": Case(row, 65, 68, 44, alpha=0.5, beta=2.0),
        "full bias": Case(full, 65, 72, 72, batch=2, pad=8, alpha=0.5, beta=-1.0),
        "full bias, beta 0": Case(full, 65, 72, 72, beta=0.0),
        "alpha 0": Case(full, 65, 72, 72, alpha=0.0),
        "tf32": Case(tf32, 65, 68, 44, alpha=2.0),
        "int8": Case(whole, 65, 68, 144),
        "f32 output": Case(replace(SM80, c="f32", d="f32", align_d=4), 65, 68, 136),
        "split": Case(replace(SM80, c="f32", d="f32", align_d=4), 65, 68, 520, split=4),
        "one A for all": Case(SM80, 65, 72, 40, batch=3, shared_a=True),
        "a row, a short sum": Case(SM80, 1, 8, 8),
    }
    return {f"sm80 {name}": Product(case, "A100") for name, case in cases.items()}


def _sm90() -> dict[str, Product]:
    wide = replace(SM90, tile=(128, 128, 64), cluster=(2, 1, 1))
    narrow = replace(SM90, tile=(64, 128, 64), align_d=1, layout_a="column")
    cluster = replace(COOPERATIVE, cluster=(1, 2, 1))
    stream = replace(COOPERATIVE, schedule="stream_k")
    output = replace(SM90, c="f32", d="f32", align_d=4)
    column, full = (replace(COOPERATIVE, bias=bias) for bias in ("column", "full"))
    uneven = replace(full, align_c=2, align_d=2)
    along_n, along_m = RASTERS.index("along_n"), RASTERS.index("along_m")
    cases = {
        **{name: Case(config, 72, 136, 104) for name, config in _orders(SM90).items()},
        "odd rows of D": Case(narrow, 72, 131, 72),
        "clusters along n": Case(cluster, 129, 200, 72, batch=2),
        "swizzle": Case(wide, 515, 392, 72, fields={"swizzle": 4, "raster": along_n}),
        "along m": Case(wide, 259, 392, 72, multiprocessors=4, fields={"raster": along_m}),
        "one A for all": Case(SM90, 65, 72, 72, batch=3, shared_a=True, multiprocessors=2),
        "one B for all": Case(SM90, 65, 72, 72, batch=3, shared_b=True, pad=8),
        "a row, a short sum": Case(SM90, 1, 8, 8),
        "bias of a column": Case(column, 129, 72, 72, alpha=0.5, beta=2.0),
        "full bias": Case(full, 129, 72, 72, batch=2, pad=8, alpha=0.5, beta=-1.0),
        "full bias, beta 0": Case(full, 129, 72, 72, beta=0.0),
        "alpha 0": Case(full, 129, 72, 72, alpha=0.0),
        "full bias, 4 bytes": Case(uneven, 129, 70, 72, beta=2.0),
        "f32 output": Case(output, 65, 72, 136),
        "stream-K": Case(stream, 257, 136, 1040, multiprocessors=7),
        "stream-K, split": Case(stream, 130, 72, 776, split=3),
        "stream-K, batch": Case(stream, 130, 72, 200, batch=3, multiprocessors=4),
        "tf32": Case(_tf32(SM90, 32), 65, 68, 72, alpha=2.0),
        "tf32, nt": Case(
            replace(_tf32(COOPERATIVE, 32), layout_a="column", layout_b="row"), 132, 68, 72
        ),
        "int8": Case(_int8(SM90, 128), 65, 68, 144),
        "int8, full bias": Case(replace(_int8(COOPERATIVE, 128), bias="full"), 129, 68, 272),
    }
    return {f"sm90 {name}": Product(case, "H100") for name, case in cases.items()}


def _narrow() -> dict[str, Product]:
    rows = replace(_fp8(SM90), scale="rowwise", bias="row")
    rows_alone = replace(_fp8(COOPERATIVE), scale="rowwise", b="e5m2")
    whole = replace(_fp8(SM90), scale="tensor", a="e5m2")
    slow = replace(
        _fp8(COOPERATIVE), scale="tensor", b="e5m2", bias="full", fast_accumulation=False
    )
    slow_rows = replace(_fp8(SM90), scale="rowwise", fast_accumulation=False, d="f16", c="f16")
    plain = replace(_fp8(SM90), d="f32", c="f32", align_d=4)
    cases = {
        "scales by row, bias": Case(rows, 65, 72, 272),
        "scales by row, e4m3 x e5m2": Case(rows_alone, 129, 72, 144),
        "a scale each, e5m2 x e4m3": Case(whole, 65, 72, 144, batch=0),
        "slow sums, full bias": Case(slow, 129, 72, 272),
        "slow sums, f16": Case(slow_rows, 65, 72, 528),
        "f32 output": Case(plain, 65, 68, 144),
    }
    return {f"sm90 fp8 {name}": Product(case, "H100") for name, case in cases.items()}


def _grouped() -> dict[str, Product]:
    groups = replace(SM90, grouped=True)
    wide = replace(COOPERATIVE, grouped=True, layout_b="row", cluster=(2, 1, 1))
    narrow = replace(_fp8(SM90), grouped=True)
    ends = {"even": (64, 128, 192), "odd": (3, 70, 201), "empty": (0, 77, 77, 200)}
    cases = {
        **{
            name: Case(groups, end[-1], 72, 72, batch=len(end), ends=end)
            for name, end in ends.items()
        },
        "all empty but one": Case(groups, 5, 72, 136, batch=5, ends=(0, 0, 5, 5, 5)),
        "B by rows, cooperative": Case(wide, 300, 136, 72, batch=3, ends=(131, 140, 300)),
        "fewer rows than A": Case(groups, 200, 72, 72, batch=2, ends=(66, 150)),
        "fp8": Case(narrow, 201, 72, 144, batch=3, ends=(3, 70, 201)),
        "few multiprocessors": Case(
            groups, 300, 136, 72, batch=3, ends=(131, 140, 300), multiprocessors=2
        ),
    }
    return {f"sm90 grouped, {name}": Product(case, "H100") for name, case in cases.items()}


def _sm100() -> dict[str, Product]:
    row = replace(SM100, bias="row")
    column = replace(TWO_SM, bias="column")
    full = replace(SM100, bias="full")
    tall = replace(SM100, tile=(64, 64, 64))
    rows = replace(_fp8(SM100), scale="rowwise", bias="row")
    whole = replace(_fp8(TWO_SM), scale="tensor", b="e5m2")
    output = replace(TWO_SM, tile=(256, 128, 64), c="f32", d="f32", align_d=4)
    cases = {
        **{name: Case(config, 136, 136, 104) for name, config in _orders(SM100).items()},
        "64 rows": Case(tall, 65, 72, 136, batch=2, shared_b=True),
        "bias of a row": Case(row, 131, 72, 72, alpha=0.5, beta=2.0),
        "bias of a column, two SMs": Case(column, 259, 72, 72, alpha=0.5, beta=2.0),
        "full bias": Case(full, 131, 72, 72, batch=2, pad=8, beta=-1.0),
        "full bias, beta 0": Case(full, 131, 72, 72, beta=0.0),
        "f32 output, two SMs": Case(output, 259, 136, 136),
        "tf32": Case(_tf32(SM100, 32), 131, 68, 72),
        "fp8, scales by row, bias": Case(rows, 131, 72, 272),
        "fp8, a scale each, two SMs": Case(whole, 131, 72, 144),
    }
    return {f"sm100 {name}": Product(case, "B200") for name, case in cases.items()}


CASES: dict[str, Product] = {**_sm80(), **_sm90(), **_narrow(), **_grouped(), **_sm100()}
"""All by name; the first word of a name is the family of kernels."""
