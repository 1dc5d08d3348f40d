"""Resources of CUTLASS kernels with each epilogue, and without: compiled for sm_90a, no GPU needed.

    python -m benchmarks.fusion.evt_compile [--epilogue gelu ...] [--tile 0 1] [--arch sm_90a]
                                     [--out benchmarks/results/evt_sm90a.json]

Each epilogue of tests/support/graphs/epilogues.py is lowered by Inductor for a simulated GPU, converted to a
visitor tree, compiled by nvcc in units of eight, and loaded; ``can_implement`` is then called for one
product. Rows of the same text are reused from the file. Ends with 1 if a kernel does not compile,
spills, refuses, or has no tensor core instruction.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.harness.repository import RESULTS
from inductor_plugin.kernels import nvcc, sass
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.ops import gemm_abi
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.templates.cutlass.config import Element, GemmConfig, full_alignment
from inductor_plugin.templates.cutlass.evt import Evt, evt_of
from inductor_plugin.templates.cutlass.limits import epilogue_bytes, why_not_buildable
from inductor_plugin.templates.cutlass.source import source
from inductor_plugin.worker.child import compile as compile_child
from inductor_plugin.worker.jobs import Compiled, CppCompileJob, Event
from tests.support.graphs.epilogues import CASES
from tests.support.graphs.with_epilogues import lowered

OUT = RESULTS / "evt_sm90a.json"
UNIT = 8
"""Kernels of one translation unit: headers are read once, and nvcc stays under 6 GB."""
LIMIT_S = 1800.0
M, N, K = 4096, 2048, 1024
"""M, N and K of the product for which ``can_implement`` is called."""
_PLAIN = GemmConfig(
    "sm_90a", (64, 128, 64), (1, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
TILES = (_PLAIN, replace(_PLAIN, tile=(128, 256, 64), cluster=(2, 1, 1), schedule="cooperative"))
BLACKWELL = (replace(_PLAIN, arch="sm_100a", tile=(128, 128, 64), schedule="one_sm"),)


@dataclass(frozen=True)
class Pair:
    """One epilogue on one tile; ``epilogue`` is None for the kernel without one."""

    name: str
    epilogue: Epilogue | None
    config: GemmConfig

    @property
    def text(self) -> str:
        """Source text of the kernel."""
        return source(self.config)

    @property
    def digest(self) -> str:
        """Digest of its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def pairs(names: Sequence[str], tiles: Sequence[GemmConfig]) -> Iterator[Pair]:
    """Yield each tile without an epilogue and with each of them; print those that do not fit a tile."""
    for tile in tiles:
        yield Pair("none", None, tile)
    for case in CASES:
        if names and case.name not in names:
            continue
        function, shapes = case.graph(torch.bfloat16)
        epilogue, _ = lowered(function, shapes, case.readers)
        evt = evt_of(epilogue)
        if not isinstance(evt, Evt):
            raise TypeError(f"{case.name} does not fit: {evt}")
        for tile in tiles:
            config = configured(tile, evt)
            if reason := why_not_buildable(config):
                print(f"{case.name} has no kernel of {tile.name}: {reason}", flush=True)
                continue
            yield Pair(case.name, epilogue, config)


def configured(tile: GemmConfig, evt: Evt) -> GemmConfig:
    """Return a kernel with an epilogue."""
    d = cast("Element", evt.result.element)
    c = d if evt.source is None else cast("Element", evt.operands[evt.source].element)
    return replace(
        tile, c=c, d=d, align_c=full_alignment(c), align_d=full_alignment(d), epilogue=evt
    )


def compiled(
    toolkit: Toolkit, unit: Sequence[Pair], folder: Path, arch: str
) -> list[dict[str, Any]]:
    """Return a row for each kernel of a unit."""

    def ignore(event: Event) -> None:
        del event

    sources = tuple(CppSource(pair.digest, pair.text, pair.config.name) for pair in unit)
    job = CppCompileJob(sources, nvcc.command(toolkit, arch), str(folder), LIMIT_S)
    before = _children_s()
    outcomes = compile_child.run(job, ignore)
    share_s = (_children_s() - before) / len(unit)
    return [
        row(toolkit, pair, outcome, round(share_s, 1))
        for pair, outcome in zip(unit, outcomes, strict=True)
    ]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(toolkit: Toolkit, pair: Pair, outcome: Compiled, cpu_s: float) -> dict[str, Any]:
    """Return the row of one kernel."""
    config, evt = pair.config, pair.config.epilogue
    record: dict[str, Any] = {
        "name": pair.name,
        "kernel": config.name,
        "text": pair.digest,
        "arch": config.arch,
        "tile": list(config.tile),
        "cluster": list(config.cluster),
        "schedule": config.schedule,
        "expression": evt.describe() if evt is not None else "sums",
        "epilogue": facts(pair.epilogue) if pair.epilogue is not None else None,
        "epilogue_bytes": epilogue_bytes(config),
        "status": outcome.status,
        "reason": outcome.reason,
        "cpu_s": cpu_s,
    }
    if outcome.status == "ok":
        assert outcome.resources is not None
        record |= asdict(outcome.resources)
        record |= asked(toolkit, config, outcome)
    return record


def facts(epilogue: Epilogue) -> dict[str, Any]:
    """Return an epilogue as plain JSON, with its signature."""
    return {**asdict(epilogue), "signature": epilogue.signature}


def asked(toolkit: Toolkit, config: GemmConfig, outcome: Compiled) -> dict[str, Any]:
    """Return whether a kernel can implement the product, its workspace and tensor core instructions."""
    ctypes.CDLL(toolkit.cudart, mode=ctypes.RTLD_GLOBAL)  # a CUDA build of torch may not be here
    kernel = gemm_abi.load(str(outcome.library), outcome.symbol)
    call = call_of(config)
    refusal = gemm_abi.can_implement(kernel, call)
    listing = sass.instructions(Path(str(outcome.library)))
    names: set[str] = set()
    if not isinstance(listing, str):
        names = {name for symbol, each in listing.items() if config.name in symbol for name in each}
    return {
        "refusal": refusal or "",
        "workspace_bytes": None if refusal else gemm_abi.workspace_bytes(kernel, call),
        "instructions": sorted(names),
    }


def call_of(config: GemmConfig) -> gemm_abi.GemmCall:
    """Return a call on dense operands."""
    call = gemm_abi.new_call(m=M, n=N, k=K, lead_c=N, lead_d=N, sm_count=132)
    call.lead_a = K if config.layout_a == "row" else M
    call.lead_b = N if config.layout_b == "row" else K
    evt = config.epilogue
    kinds = (
        ()
        if evt is None
        else (*(operand.kind for operand in evt.operands), *("full" for _ in evt.aux))
    )
    for place, kind in enumerate(kinds):
        along_m = {"source": N, "full": N, "column": 1}.get(kind, 0)
        call.operands[place].along_m = along_m
        call.operands[place].along_n = int(kind in ("source", "full", "row"))
    return call


def complaints(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the defects of kernels, one line each."""
    lines: list[str] = []
    for row in rows:
        what = f"{row['name']} on {row['schedule']} {'x'.join(map(str, row['tile']))}"
        if row["status"] != "ok":
            lines.append(f"{what}: {row['status']}: {row['reason']}")
        elif row["spills"] or row["refusal"] or not row["instructions"]:
            lines.append(
                f"{what}: {row['spills']} bytes spilled, refusal {row['refusal']!r}, tensor core "
                f"instructions {row['instructions']}"
            )
    return lines


def stored(out: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by the digests of their texts."""
    if not out.exists():
        return {}
    return {row["text"]: row for row in json.loads(out.read_text())["kernels"]}


def main() -> int:
    """Compile, write the file after each unit, and print the defects."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--epilogue", nargs="*", default=[], choices=[case.name for case in CASES])
    parser.add_argument("--tile", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--arch", default="sm_90a", choices=("sm_90a", "sm_100a"))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    toolkit = nvcc.find("", dict(os.environ))
    if not isinstance(toolkit, Toolkit):
        print(toolkit.reason)
        return 1
    chosen: list[int] = options.tile
    tiles = [TILES[index] for index in chosen] if options.arch == "sm_90a" else [*BLACKWELL]
    all_pairs = list(pairs(options.epilogue, tiles))
    rows_by_text = stored(options.out)
    rows = [rows_by_text[pair.digest] for pair in all_pairs if pair.digest in rows_by_text]
    missing = [pair for pair in all_pairs if pair.digest not in rows_by_text]
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, len(missing), UNIT):
            new_rows = compiled(toolkit, missing[first : first + UNIT], Path(folder), options.arch)
            rows += new_rows
            rows_by_text |= {row["text"]: row for row in new_rows}
            write(options.out, toolkit, list(rows_by_text.values()))
            for row in new_rows:
                print(*(row.get(key) for key in SHOWN), flush=True)
    wrong = complaints(rows)
    print("\n".join(wrong) or f"{len(rows)} kernels, none spills")
    return 1 if wrong else 0


SHOWN = (
    "name",
    "schedule",
    "tile",
    "status",
    "registers",
    "spills",
    "shared_bytes",
    "cpu_s",
    "refusal",
)


def write(out: Path, toolkit: Toolkit, rows: Sequence[dict[str, Any]]) -> None:
    """Write the file."""
    report = {
        "torch": torch.__version__,
        "nvcc": toolkit.version,
        "cutlass": toolkit.cutlass_version,
        "kernels": sorted(rows, key=lambda row: (row["name"], row["kernel"])),
    }
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
