"""Rows of the table: what was seen of a case of a kernel, in each schedule."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import Toolkit
from tests.emulator.ptx.digest import digest
from tests.emulator.runtime.launch import Launch
from tests.support.repository import REPOSITORY

TABLE = REPOSITORY / "benchmarks" / "results" / "emulator_cpu.json"
"""The committed table; ``python -m tests.emulator.suite`` renews it."""


MORE, LESS = 1.25, 0.8
"""A count may grow by this factor and by `_FEW`, and shrink by the other: another version of nvcc schedules other instructions."""
_FEW = 4096
"""At most half of the count: what doubles is seen, however little it is."""
EMULATOR = (
    "arithmetic",
    "codegen",
    "machine",
    "memory",
    "ptx",
    "races",
    "runtime",
    "tensor",
    "threads",
)
_ONCE_A_WARP = ("global written", "shared read")
"""What a TMA store counts. Rows without a digest of their PTX are of a time when it counted for each lane of a warp, up to 32 times:
of these a smaller count is right."""


@dataclass(frozen=True)
class Verdict:
    """What was seen of a case in one schedule.

    Attributes:
        error: Largest error against float64, in units of what the product accepts; more than 1 is wrong.
        changed: Bytes outside of the outputs that changed.
        launches: What was launched.
    """

    error: float
    changed: int
    launches: list[Launch]


@dataclass
class Row:
    """One case of a kernel.

    Attributes:
        family: The family of kernels.
        case: Name of the case.
        kernel: Name of the kernel.
        gpu: The emulated GPU.
        source: Digest of the kernel's source, where it has one of its own.
        errors: Verdict of each schedule by its name: the error.
        counts: What the kernel does, see `counts_of`; the same in all schedules but for waits.
        seconds: What all schedules took together, seconds of a CPU, without nvcc; 0 in rows whose time nobody has measured.
        ptx: Digest of what its launches ran, see `ptx_of`; with it, a row of another source may still be right.
        compile_s: Its part of the seconds of a CPU that nvcc took for the kernels compiled before it ran; 0 if another case of the
            kernel has them, and in rows whose time nobody has measured.
        emulator: Digest of the emulator that has run its watched schedule last, see `emulator_of_today`; an earlier one may have run
            the others, and counted.
    """

    family: str
    case: str
    kernel: str
    gpu: str
    source: str
    errors: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    ptx: str = ""
    compile_s: float = 0.0
    emulator: str = ""


def differing(row: Row, now: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return the counts that are far from those of a row: before and now."""
    far: dict[str, tuple[int, int]] = {}
    for name in sorted({*row.counts, *now}):
        before, count = row.counts.get(name, 0), now.get(name, 0)
        grows = count > MORE * before + min(_FEW, before // 2)
        may_shrink = name in _ONCE_A_WARP and not row.ptx
        if grows or (count < LESS * before and not may_shrink):
            far[name] = (before, count)
    return far


def read(path: Path = TABLE) -> dict[str, Row]:
    """Return the rows of a table by case; none if there is no table."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {row["case"]: Row(**row) for row in data["rows"]}


def write(rows: Iterable[Row], facts: dict[str, Any], path: Path = TABLE) -> None:
    """Write a table, one row a line."""
    ordered = sorted(rows, key=lambda row: (row.family, row.case))
    seconds: defaultdict[str, float] = defaultdict(float)
    for row in ordered:
        seconds[row.family] += row.seconds
    facts = {
        **facts,
        "seconds of each family": {name: round(s) for name, s in seconds.items()},
        "seconds of all": round(math.fsum(row.seconds for row in ordered)),
        "seconds of compiling": round(math.fsum(row.compile_s for row in ordered)),
    }
    lines = ",\n".join("  " + json.dumps(asdict(row)) for row in ordered)
    text = f'{{\n "facts": {json.dumps(facts)},\n "rows": [\n{lines}\n ]\n}}\n'
    replace_file(path, text)


def replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: a command may be stopped at any time."""
    unfinished = path.with_suffix(f".unfinished{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def versions() -> dict[str, str]:
    """Return the versions that compiled kernels depend on; empty where there is no nvcc."""
    toolkit = nvcc.find("", dict(os.environ))
    known = isinstance(toolkit, Toolkit)
    return {
        "nvcc": toolkit.version if known else "",
        "cutlass": toolkit.cutlass_version if known else "",
    }


@functools.cache
def emulator_of_today() -> str:
    """Return a digest of the emulator: its modules without those that build, call and list kernels, and its C part."""
    folder = REPOSITORY / "tests" / "emulator"
    places = [
        folder / "fault.py",
        *(each for name in EMULATOR for each in folder.glob(f"{name}/*")),
    ]
    texts = [
        path.read_bytes()
        for path in sorted(places)
        if path.suffix in (".py", ".c") and not path.name.startswith("test_")
    ]
    return hashlib.sha256(b"\n".join(texts)).hexdigest()[:16]


def rounded(error: float) -> float:
    """Return an error with three digits; JSON has no infinity."""
    return float(f"{min(error, 1e9):.3g}")


def ptx_of(launches: Iterable[Launch]) -> str:
    """Return a digest of what launches ran: the kernels' PTX, their grids, blocks, clusters and shared memory."""
    lines = [
        f"{digest(launch.text, launch.name)} {launch.shape} {launch.shared_bytes}"
        for launch in launches
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""


def counts_of(launches: Iterable[Launch]) -> dict[str, int]:
    """Return what launches move and compute: see `Traffic.counts`, and instructions of 32 lanes."""
    total: Counter[str] = Counter()
    for launch in launches:
        total.update(launch.traffic)
        total["warp instructions"] += launch.lane_instructions // 32
    return dict(sorted(total.items()))
