"""Compares the predictions of `inductor_plugin.cost.prune` for fused kernels with the compiler's results.

    python -m benchmarks.fusion.prediction [--gpu A100 ...] [--fresh]
                                           [--out benchmarks/results/fusion_prediction.json]

Each kernel is compiled alone and with each epilogue by Triton and ptxas, for a simulated GPU; CUTLASS
kernels with an epilogue come from ``benchmarks/results/evt_sm90a.json``. The model's constants were
fitted to the pairs that are marked as calibration; the others are held out. Pairs in the file are not
compiled again if torch, Triton and templates are the same.
Ends with 1 if fewer than 95 % of the pairs have registers within 15 %, or correctly predicted spills.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.repository import RESULTS
from benchmarks.harness.sources import sources_digest
from inductor_plugin.cost.prune import FusionPrediction, predict, why_not
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES, KernelResources
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.target import target

OUT = RESULTS / "fusion_prediction.json"
EVT = RESULTS / "evt_sm90a.json"
REGISTERS_OFF = 0.15
"""By how much predicted registers may differ from the compiler's."""
RIGHT = 0.95
"""Share of the pairs whose registers and spills have to be right."""


@dataclass(frozen=True)
class Taken:
    """A kernel's resources: registers and spilled bytes of a thread, shared memory of a block."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Pair:
    """One kernel with one epilogue.

    Attributes:
        gpu: The GPU it is compiled for.
        kernel: The kernel alone, as compiled.
        name: Name of the kernel in tables.
        epilogue: Name of the epilogue.
        fused: Resources of both together.
        calibration: Whether the model's constants were fitted to it; the others are held out.
    """

    gpu: str
    kernel: Kernel
    name: str
    epilogue: str
    fused: Taken
    calibration: bool


def taken_of(resources: KernelResources) -> Taken:
    """Return the resources that are compared."""
    return Taken(resources.registers, resources.spilled_bytes, resources.shared_bytes)


def epilogue_of(facts: Mapping[str, Any]) -> Epilogue:
    """Return an epilogue that was written as JSON."""

    def steps() -> Iterable[Step]:
        for step in facts["steps"]:
            yield Step(step["op"], tuple(step["arguments"]), step["value"])

    def accesses(name: str) -> tuple[Access, ...]:
        return tuple(
            Access(**(access | {"stride": tuple(access["stride"])})) for access in facts[name]
        )

    others = {
        name: value
        for name, value in facts.items()
        if name not in ("steps", "reads", "writes", "size")
    }
    return Epilogue(
        size=tuple(facts["size"]),
        steps=tuple(steps()),
        reads=accesses("reads"),
        writes=accesses("writes"),
        **others,
    )


def compile_pairs(gpus: Sequence[str], store: dict[str, Any], out: Path) -> None:
    """Compile the pairs that the store lacks, and write it after each."""
    from benchmarks.fusion.pairs import EPILOGUES, KERNELS, compiled
    from inductor_plugin.aot.fake_device import as_target

    for gpu in map(target, gpus):
        for facts in KERNELS[gpu.name]:
            key = f"{gpu.name} {facts.name}"
            entry = store["kernels"].setdefault(key, {"gpu": gpu.name, "name": facts.name})
            entry["calibration"] = facts.calibration
            stored = entry.get("fused", {})
            entry["fused"] = {name: stored[name] for name in EPILOGUES if name in stored}
            missing = [name for name in EPILOGUES if name not in stored]
            if not missing:
                continue
            with as_target(gpu):
                if "alone" not in entry:
                    alone = taken_of(compiled(facts, None, gpu).taken)
                    entry |= {"alone": asdict(alone), "kernel": kernel_facts(facts, alone)}
                for name in missing:
                    fused = compiled(facts, name, gpu)
                    assert fused.epilogue is not None
                    entry["fused"][name] = asdict(taken_of(fused.taken))
                    store["epilogues"][name] = asdict(fused.epilogue)
                    print(key, "|", name, "|", entry["fused"][name], flush=True)
                    out.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")


def kernel_facts(facts: Any, alone: Taken) -> dict[str, Any]:
    """Return the fields of a `Kernel` as JSON values."""
    return {
        "template": facts.template,
        "tile": facts.tile,
        "warps": facts.warps,
        "stages": facts.stages,
        "persistent": facts.persistent,
        "registers": alone.registers,
        "spilled_bytes": alone.spilled_bytes,
        "shared_bytes": alone.shared_bytes,
    }


def kernel_of(facts: Mapping[str, Any]) -> Kernel:
    """Return a kernel that was written as JSON."""
    lists = ("tile", "operands", "shape")
    plain: dict[str, Any] = {n: tuple(value) if n in lists else value for n, value in facts.items()}
    return Kernel(**plain)


def add_evt(store: dict[str, Any], path: Path = EVT) -> None:
    """Add the CUTLASS pairs of a file to the store, if the file exists."""
    if not path.exists():
        return
    rows = [
        row
        for row in json.loads(path.read_text(encoding="utf-8"))["kernels"]
        if row["status"] == "ok" and row["arch"] == "sm_90a"
    ]
    alone = {_shape(row): row for row in rows if row["epilogue"] is None}
    for row in rows:
        base = alone.get(_shape(row))
        if row["epilogue"] is None or base is None:
            continue
        name = f"evt {row['name']}"
        facts = dict(row["epilogue"])
        del facts["signature"]
        store["epilogues"][name] = facts
        entry = store["kernels"].setdefault(
            f"H200 {_shape(row)}",
            {
                "gpu": "H200",
                "name": _shape(row),
                "calibration": False,
                "alone": asdict(_taken(base)),
                "kernel": {
                    "template": "cutlass_gemm",
                    "kind": "cutlass",
                    "tile": base["tile"],
                    "warps": 4 if base["schedule"] == "pingpong" else 8,
                    "threads": base["threads"],
                    "persistent": True,
                    **asdict(_taken(base)),
                },
                "fused": {},
            },
        )
        entry["fused"][name] = asdict(_taken(row))


def _shape(row: Mapping[str, Any]) -> str:
    return f"cutlass {'x'.join(map(str, row['tile']))} {row['schedule']}"


def _taken(row: Mapping[str, Any]) -> Taken:
    return Taken(row["registers"], row["spills"], row["shared_bytes"])


def pairs_of(store: Mapping[str, Any]) -> list[Pair]:
    """Return the pairs of a file."""
    return [
        Pair(
            entry["gpu"],
            kernel_of(entry["kernel"]),
            entry["name"],
            name,
            Taken(**{key: value for key, value in fused.items() if key != "foretold"}),
            entry["calibration"],
        )
        for entry in store["kernels"].values()
        for name, fused in entry["fused"].items()
    ]


@dataclass(frozen=True)
class Row:
    """One pair and its prediction."""

    pair: Pair
    epilogue: Epilogue
    predicted: FusionPrediction

    @property
    def foretold(self) -> list[int]:
        """Predicted registers and spilled bytes of a thread."""
        return [self.predicted.fused.registers, self.predicted.fused.spilled_bytes]

    @property
    def off(self) -> float:
        """Relative error of the predicted registers."""
        return self.predicted.fused.registers / self.pair.fused.registers - 1

    @property
    def close(self) -> bool:
        """Whether that error is accepted."""
        return abs(self.off) <= REGISTERS_OFF

    @property
    def unchanged(self) -> bool:
        """Whether the registers of the kernel alone would have been accepted, too."""
        return (
            abs((self.pair.kernel.registers or 0) / self.pair.fused.registers - 1) <= REGISTERS_OFF
        )

    @property
    def shared_close(self) -> bool:
        """Whether shared memory is right within two percent: CUTLASS adds alignment of its buffers."""
        return abs(self.predicted.fused.shared_bytes / self.pair.fused.shared_bytes - 1) <= 0.02

    @property
    def spills_right(self) -> bool:
        """Whether the model is right about whether anything is spilled."""
        return (self.predicted.fused.spilled_bytes > 0) == (self.pair.fused.spilled_bytes > 0)

    @property
    def pruned(self) -> bool:
        """Whether it would not be compiled because of predicted spills."""
        reason = why_not(self.pair.kernel, self.epilogue, self.predicted)
        return reason is not None and reason.startswith("spills")

    @property
    def pruned_wrongly(self) -> bool:
        """Whether it would be pruned although it spills no more than is accepted."""
        return self.pruned and self.pair.fused.spilled_bytes <= SPILL_LIMIT_BYTES


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how many rows are right."""
    return {
        "pairs": len(rows),
        "registers_close": sum(row.close for row in rows),
        "registers_close_if_unchanged": sum(row.unchanged for row in rows),
        "spills_right": sum(row.spills_right for row in rows),
        "spilling": sum(row.pair.fused.spilled_bytes > 0 for row in rows),
        "pruned": sum(row.pruned for row in rows),
        "pruned_wrongly": sum(row.pruned_wrongly for row in rows),
        "shared_close": sum(row.shared_close for row in rows),
    }


def summaries(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the summary of all rows, of each half, and of each GPU."""
    parts = {
        "all": list(rows),
        "calibration": [row for row in rows if row.pair.calibration],
        "held out": [row for row in rows if not row.pair.calibration],
    }
    parts["held out, triton"] = [
        row for row in parts["held out"] if row.pair.kernel.kind == "triton"
    ]
    for kind in ("triton", "cutlass"):
        parts[kind] = [row for row in rows if row.pair.kernel.kind == kind]
    for gpu in dict.fromkeys(row.pair.gpu for row in rows):
        parts[gpu] = [row for row in rows if row.pair.gpu == gpu]
    return {name: summary(part) for name, part in parts.items()}


def table(rows: Sequence[Row]) -> Table:
    """Return the table of all rows."""
    result = Table(
        "GPU", "kernel", "epilogue", "registers", "foretold", "off", "spills", "foretold", ""
    )
    for row in rows:
        pair, predicted = row.pair, row.predicted.fused
        result.add_row(
            pair.gpu,
            pair.name,
            pair.epilogue,
            f"{pair.kernel.registers} -> {pair.fused.registers}",
            str(predicted.registers),
            f"{row.off:+.0%}" if row.close else f"[red]{row.off:+.0%}[/]",
            str(pair.fused.spilled_bytes),
            str(predicted.spilled_bytes)
            if row.spills_right
            else f"[red]{predicted.spilled_bytes}[/]",
            "calibration" if pair.calibration else "",
        )
    return result


def main() -> int:
    """Compile what is missing, compare, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", nargs="+", default=["A100", "H200"])
    parser.add_argument("--fresh", action="store_true", help="compile everything again")
    parser.add_argument("--compare-only", action="store_true", help="compile nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    made_by = versions()
    store: dict[str, Any] = {"made_by": made_by, "epilogues": {}, "kernels": {}}
    if options.out.exists() and not options.fresh:
        stored = json.loads(options.out.read_text(encoding="utf-8"))
        if options.compare_only or stored["made_by"] == made_by:
            store = stored
    if not options.compare_only:
        compile_pairs(options.gpu, store, options.out)
        add_evt(store)
    rows = rows_of(store)
    for row in rows:
        entry = store["kernels"][f"{row.pair.gpu} {row.pair.name}"]
        entry["fused"][row.pair.epilogue]["foretold"] = row.foretold
    store["summary"] = summaries(rows)
    options.out.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")
    console = Console(width=150)
    console.print(table(rows))
    for name, part in store["summary"].items():
        console.print(name, part)
    return 0 if all(kept(store["summary"][name]) for name in ("all", "triton", "held out")) else 1


TEMPLATES = ("templates/triton/persistent_tma.jinja", "templates/triton/split_k.jinja")


def versions() -> dict[str, str]:
    """Return the versions that the compiled kernels depend on."""
    made_by = {name: importlib.metadata.version(name) for name in ("torch", "triton")}
    return made_by | {"templates": sources_digest(TEMPLATES)}


def rows_of(store: Mapping[str, Any]) -> list[Row]:
    """Return all pairs of a file with their current predictions."""
    epilogues = {name: epilogue_of(facts) for name, facts in store["epilogues"].items()}
    rows: list[Row] = []
    for pair in pairs_of(store):
        epilogue = epilogues[pair.epilogue]
        rows.append(Row(pair, epilogue, predict(pair.kernel, epilogue, target(pair.gpu))))
    return rows


def kept(part: Mapping[str, Any]) -> bool:
    """Return whether both bounds hold."""
    least = RIGHT * part["pairs"]
    return part["registers_close"] >= least and part["spills_right"] >= least


if __name__ == "__main__":
    sys.exit(main())
