"""The cases of CUTLASS's products for Hopper: schedules, clusters, biases, orders, 16 bits and TF32 and integers, groups."""

from __future__ import annotations

from dataclasses import replace

from inductor_plugin.templates.cutlass.gemm import RASTERS
from tests.emulator.kernels.gemm import Case
from tests.emulator.suite.cases.configs import (
    COOPERATIVE,
    SM90,
    STREAM_K,
    Product,
    fp8,
    int8,
    named,
    orders,
    tf32,
    turned,
)


def _plain() -> dict[str, Case]:
    wide = replace(SM90, tile=(128, 128, 64), cluster=(2, 1, 1))
    narrow = replace(SM90, tile=(64, 128, 64), align_d=1, layout_a="column")
    odd = turned(replace(COOPERATIVE, align_d=1), "nt")
    cluster = replace(COOPERATIVE, cluster=(1, 2, 1))
    output = replace(SM90, c="f32", d="f32", align_d=4)
    along_n, along_m = RASTERS.index("along_n"), RASTERS.index("along_m")
    return {
        **{name: Case(config, 72, 136, 104) for name, config in orders(SM90).items()},
        "odd rows of D": Case(narrow, 72, 131, 72),
        "odd rows of D, cooperative": Case(odd, 136, 72, 72, pad=3),
        "clusters along n": Case(cluster, 129, 200, 72, batch=2),
        "swizzle": Case(wide, 515, 392, 72, fields={"swizzle": 4, "raster": along_n}),
        "along m": Case(wide, 259, 392, 72, multiprocessors=4, fields={"raster": along_m}),
        "one A for all": Case(SM90, 65, 72, 72, batch=3, shared_a=True, multiprocessors=2),
        "one B for all": Case(SM90, 65, 72, 72, batch=3, shared_b=True, pad=8),
        "a row, a short sum": Case(SM90, 1, 8, 8),
        "f32 output": Case(output, 65, 72, 136),
    }


def _biased() -> dict[str, Case]:
    along_n = turned(replace(SM90, cluster=(1, 2, 1), bias="row"), "tt")
    along_m = turned(replace(COOPERATIVE, cluster=(2, 1, 1), bias="row"), "nn")
    column, full = (replace(COOPERATIVE, bias=bias) for bias in ("column", "full"))
    uneven = replace(full, align_c=2, align_d=2)
    column_nt, full_tt = (
        turned(replace(SM90, bias="column"), "nt"),
        turned(replace(SM90, bias="full"), "tt"),
    )
    return {
        "bias of a row, clusters": Case(along_n, 65, 136, 72, alpha=0.5, beta=2.0),
        "bias of a row, cooperative": Case(along_m, 136, 72, 72, beta=-1.0),
        "bias of a column": Case(column, 129, 72, 72, alpha=0.5, beta=2.0),
        "bias of a column, pingpong": Case(column_nt, 72, 72, 72, beta=-1.0),
        "full bias": Case(full, 129, 72, 72, batch=2, pad=8, alpha=0.5, beta=-1.0),
        "full bias, pingpong": Case(full_tt, 65, 72, 72, batch=2, beta=2.0),
        "full bias, beta 0": Case(full, 129, 72, 72, beta=0.0),
        "alpha 0": Case(full, 129, 72, 72, alpha=0.0),
        "full bias, 4 bytes": Case(uneven, 129, 70, 72, beta=2.0),
    }


def _stream_k() -> dict[str, Case]:
    row = turned(replace(STREAM_K, bias="row", cluster=(2, 1, 1)), "nt")
    column = turned(replace(STREAM_K, bias="column"), "tt")
    full = turned(replace(STREAM_K, bias="full"), "nt")
    single = turned(replace(tf32(STREAM_K, 32), bias="full"), "nn")
    return {
        "stream-K": Case(STREAM_K, 257, 136, 1040, multiprocessors=7),
        "stream-K, split": Case(STREAM_K, 130, 72, 776, split=3),
        "stream-K, batch": Case(STREAM_K, 130, 72, 200, batch=3, multiprocessors=4),
        "stream-K, bias of a row": Case(row, 264, 72, 520, beta=2.0, multiprocessors=6),
        "stream-K, bias of a column": Case(column, 130, 72, 520, alpha=0.5, multiprocessors=3),
        "stream-K, full bias": Case(full, 136, 72, 520, beta=-1.0, pad=8, multiprocessors=3),
        "stream-K, tf32, full bias": Case(single, 132, 68, 264, multiprocessors=3),
        "stream-K, int8": Case(int8(STREAM_K, 128), 130, 68, 784, multiprocessors=3),
    }


def _other_types() -> dict[str, Case]:
    odd = turned(replace(tf32(SM90, 32), align_d=1), "tt")
    column = turned(replace(tf32(COOPERATIVE, 32), bias="column"), "nn")
    rows = replace(tf32(COOPERATIVE, 32), tile=(128, 128, 32), cluster=(2, 1, 1), bias="full")
    whole = int8(SM90, 128)
    return {
        "tf32": Case(tf32(SM90, 32), 65, 68, 72, alpha=2.0),
        "tf32, nt": Case(turned(tf32(COOPERATIVE, 32), "nt"), 132, 68, 72),
        "tf32, tt, odd rows of D": Case(odd, 65, 68, 72, pad=3),
        "tf32, tt": Case(turned(tf32(SM90, 32), "tt"), 65, 200, 72, alpha=2.0),
        "tf32, tt, full bias": Case(turned(rows, "tt"), 200, 68, 104, batch=2, alpha=0.5, beta=2.0),
        "tf32, nn, bias of a column": Case(column, 132, 68, 72, alpha=0.5, beta=2.0),
        "tf32, bias of a row": Case(replace(tf32(SM90, 32), bias="row"), 65, 68, 72, beta=-1.0),
        "int8": Case(whole, 65, 68, 144),
        "int8, odd rows of D": Case(replace(whole, align_d=1), 65, 67, 144),
        "int8, full bias": Case(replace(int8(COOPERATIVE, 128), bias="full"), 129, 68, 272),
    }


def _grouped() -> dict[str, Product]:
    groups = replace(SM90, grouped=True)
    wide = replace(COOPERATIVE, grouped=True, layout_b="row", cluster=(2, 1, 1))
    narrow = replace(fp8(SM90), grouped=True)
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
    return named("sm90 grouped,", "H100", cases)


CASES: dict[str, Product] = {
    **named("sm90", "H100", {**_plain(), **_biased(), **_stream_k(), **_other_types()}),
    **_grouped(),
}
"""All by name."""
