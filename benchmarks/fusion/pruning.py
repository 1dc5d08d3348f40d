"""Savings of the static analysis of fusions over a fixed count, and its errors. No GPU needed.

    python -m benchmarks.fusion.pruning [--compare-only] [--out benchmarks/results/fusion_pruning.json]

Four ways to choose the kernels of a product that are compiled with an epilogue:

    all        every Triton kernel
    count      the `MAX_LOSSLESS` + `MAX_UNCERTAIN` that are the fastest alone
    ranking    those of `Shortlist` by times and by whether a kernel loses by it, without the rules of `cost/prune.py`
    analysis   the plugin's: `Shortlist` with these rules, by predicted registers, spills, blocks and times

In each of them a kernel that spills once it is compiled by ptxas is not measured, nor one that takes as long alone as
the product and the epilogue apart (`beaten`). Cases:

    networks   products of BERT, GPT-2 and Llama with their epilogues, for an H100 (`fusion_facts.json`)
    pairs      the kernels and epilogues of `fusion_prediction.json`, some of them used for calibration
    stress     epilogues made to spill or to lower occupancy (`benchmarks.fusion.stress`), all held out

Resources are those compiled by Triton and ptxas; times are those of `benchmarks.fusion.cost`, one model
for all ways. A verdict on a pair is right if the compiled kernel's resources lead to the same verdict.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.fusion.cost import CYCLES, Cost, Product, Work
from benchmarks.fusion.prediction import (
    OUT as PAIRS,
)
from benchmarks.fusion.prediction import (
    Pair,
    Taken,
    epilogue_of,
    kernel_facts,
    kernel_of,
    pairs_of,
    taken_of,
    versions,
)
from benchmarks.harness.repository import RESULTS
from inductor_plugin.cache import Resources
from inductor_plugin.cost.limits import Limits
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.cost.shortlist import (
    MAX_LOSSLESS,
    MAX_UNCERTAIN,
    FusionEstimate,
    Shortlist,
)
from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.race import beaten

OUT = RESULTS / "fusion_pruning.json"
SIZE = 2048
"""M, N and K of pairs and stress."""
WAYS = ("all", "count", "ranking", "analysis")


class Unruled(FusionEstimate):
    """An estimate that rules nothing out before the kernel is compiled."""

    def why_not(self) -> None:
        """Return None: it is compiled."""


@dataclass(frozen=True)
class Candidate:
    """One kernel of a case.

    Attributes:
        name: Name of the kernel in tables.
        kernel: The kernel alone, as compiled.
        unfused_us: Its time alone.
        fused_us: Its time with the epilogue, if it spills nothing.
        fused: Its resources with the epilogue.
    """

    name: str
    kernel: Kernel
    unfused_us: float
    fused_us: float
    fused: Taken

    @property
    def resources(self) -> Resources:
        """Resources of the fused kernel as compiled."""
        return Resources(
            self.fused.registers,
            self.fused.spilled_bytes,
            self.fused.shared_bytes,
            self.kernel.block_threads(),
        )


@dataclass(frozen=True)
class Case:
    """One product and its epilogue, with the kernels that compete.

    Attributes:
        kind: ``networks``, ``pairs`` or ``stress``.
        gpu: The GPU it is compiled for.
        name: Name of the epilogue, with the identity of its product.
        epilogue: The epilogue.
        apart_us: Time of the best product and of the epilogue as a separate kernel.
        candidates: The kernels, the fastest alone first.
    """

    kind: str
    gpu: str
    name: str
    epilogue: Epilogue
    apart_us: float
    candidates: tuple[Candidate, ...]

    def estimate(
        self, candidate: Candidate, kind: type[FusionEstimate] = FusionEstimate
    ) -> FusionEstimate:
        """Return the plugin's estimate for a kernel before it is compiled fused."""
        facts = (candidate.kernel, self.epilogue, target(self.gpu), Limits())
        return kind(*facts, candidate.unfused_us)

    def compiled(self, way: str) -> list[Candidate]:
        """Return the kernels that are compiled with the epilogue."""
        if way == "all":
            return list(self.candidates)
        if way == "count":
            return list(self.candidates[: MAX_LOSSLESS + MAX_UNCERTAIN])
        shortlist, kind = Shortlist(), Unruled if way == "ranking" else FusionEstimate
        for candidate in self.candidates:
            estimated = functools.partial(self.estimate, candidate, kind)
            shortlist.offer(candidate.name, candidate.unfused_us, estimated)
        return [candidate for candidate in self.candidates if candidate.name in shortlist.kept]

    def measured(self, way: str) -> list[Candidate]:
        """Return the compiled kernels that are measured: their resources are accepted, and alone they are fast enough."""
        return [
            candidate
            for candidate in self.compiled(way)
            if self.why_not(candidate) is None
            and beaten(self.estimate(candidate).least_ms(), [self.apart_us / 1e3]) is None
        ]

    def why_not(self, candidate: Candidate) -> str | None:
        """Return why a kernel is not measured once it is compiled, None if it is."""
        return self.estimate(candidate).why_not_compiled(candidate.resources)

    def chosen_us(self, way: str) -> float:
        """Return the time of the final choice: a fused kernel, or two kernels."""
        return min([self.apart_us, *(candidate.fused_us for candidate in self.measured(way))])


def row_of(case: Case) -> dict[str, Any]:
    """Return the result of each way for a case, and the verdicts on each of its pairs."""
    before = [case.estimate(candidate).why_not() for candidate in case.candidates]
    after = [case.why_not(candidate) for candidate in case.candidates]
    verdicts = list(zip(before, after, strict=True))
    ways: dict[str, Any] = {}
    for way in WAYS:
        compiled, measured = case.compiled(way), case.measured(way)
        ways[way] = {
            "compiled": [candidate.name for candidate in compiled],
            "measured": len(measured),
            "chosen_us": round(case.chosen_us(way), 3),
        }
    return {
        "kind": case.kind,
        "gpu": case.gpu,
        "name": case.name,
        "pairs": len(case.candidates),
        "pruned_rightly": sum(1 for first, last in verdicts if first and last),
        "pruned_wrongly": sum(1 for first, last in verdicts if first and not last),
        "kept_wrongly": sum(1 for first, last in verdicts if last and not first),
        "spilling": sum(1 for last in after if last and last.startswith("spills")),
        **ways,
    }


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over some rows."""
    rows = list(rows)
    counts = ("pairs", "spilling", "pruned_rightly", "pruned_wrongly", "kept_wrongly")
    ways: dict[str, Any] = {}
    for way in WAYS:
        compiled = sum(len(row[way]["compiled"]) for row in rows)
        measured = sum(row[way]["measured"] for row in rows)
        slower = [row[way]["chosen_us"] / row["all"]["chosen_us"] - 1 for row in rows]
        ways[way] = {
            "compiled": compiled,
            "measured": measured,
            "compiled_in_vain": compiled - measured,
            "nothing_measured": sum(
                row["all"]["measured"] > 0 and not row[way]["measured"] for row in rows
            ),
            "slower_than_all": sum(share > 0 for share in slower),
            "slower_by_at_most": round(max(slower, default=0.0), 3),
        }
    sums = {name: sum(row[name] for row in rows) for name in counts}
    return {"cases": len(rows), **sums, **ways}


def summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary of all rows, and of each kind."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    parts = {kind: summary(row for row in rows if row["kind"] == kind) for kind in kinds}
    return {"all": summary(rows), **parts}


def cases_of(store: Mapping[str, Any]) -> list[Case]:
    """Return the cases of a file and of `fusion_prediction.json`."""
    pairs = json.loads(PAIRS.read_text(encoding="utf-8"))
    return [
        *map(_network_case, store["networks"]),
        *_cases("pairs", pairs),
        *_cases("stress", store),
    ]


def _network_case(facts: Mapping[str, Any]) -> Case:
    candidates = [
        Candidate(
            candidate["name"],
            kernel_of(candidate["kernel"]),
            candidate["unfused_us"],
            candidate["fused_us"],
            Taken(**candidate["fused"]),
        )
        for candidate in facts["candidates"]
    ]
    return Case(
        "networks",
        facts["gpu"],
        facts["name"],
        epilogue_of(facts["epilogue"]),
        facts["apart_us"],
        _ranked(candidates),
    )


def _cases(kind: str, store: Mapping[str, Any]) -> list[Case]:
    """Return the cases of kernels that are stored as in `fusion_prediction.json`."""
    competing: dict[tuple[str, str], list[Candidate]] = {}
    apart: dict[tuple[str, str], float] = {}
    for pair in pairs_of(store):
        kernel, epilogue = pair.kernel, epilogue_of(store["epilogues"][pair.epilogue])
        if kernel.kind != "triton":
            continue
        key = pair.gpu, pair.epilogue
        unfused_us, fused_us, apart[key] = _times(pair, epilogue)
        candidate = Candidate(pair.name, kernel, unfused_us, fused_us, pair.fused)
        competing.setdefault(key, []).append(candidate)
    cases: list[Case] = []
    for (gpu, name), candidates in competing.items():
        ranked = _ranked(candidates)
        apart_us = ranked[0].unfused_us + apart[gpu, name]
        epilogue = epilogue_of(store["epilogues"][name])
        cases.append(Case(kind, gpu, name, epilogue, apart_us, ranked))
    return cases


def _times(pair: Pair, epilogue: Epilogue) -> tuple[float, float, float]:
    """Return microseconds of a kernel alone, of the fused kernel, and of the separate epilogue."""
    cost, product = Cost(target(pair.gpu), "digest"), Product(1, SIZE, SIZE, SIZE)
    kernel, label = pair.kernel, pair.epilogue
    wider = item_bytes(kernel.operands[0]) / 2  # the model's elements have two bytes
    tile = kernel.tile[:2]
    cycles = epilogue.elements * sum(CYCLES.get(operation, 1) for operation in epilogue.operations)
    own = epilogue.product_bytes
    read = sum(access.bytes for access in epilogue.reads)
    written = sum(access.bytes for access in epilogue.writes)
    moved = product.operand_bytes + read, written + (own if epilogue.readers else 0)
    fused = Work(product, pair.name, tile, *moved, cycles, label)
    apart = Work(None, "", (0, 0), read + own, written, cycles, label)
    alone_us = wider * cost.triton(product, pair.name, tile)
    return alone_us, wider * cost.generated(fused), cost.generated(apart)


def _ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda candidate: candidate.unfused_us))


def compile_stress(store: dict[str, Any], out: Path) -> None:
    """Compile the pairs that the file lacks, and write the file after each."""
    from benchmarks.fusion.pairs import ALONE, compiled_with
    from benchmarks.fusion.stress import EPILOGUES, PRODUCTS
    from inductor_plugin.aot.fake_device import as_target

    for gpu, kernels, names in PRODUCTS:
        for facts in kernels:
            key = f"{gpu} {facts.name}"
            entry = store["kernels"].setdefault(
                key, {"gpu": gpu, "name": facts.name, "calibration": False, "fused": {}}
            )
            with as_target(gpu):
                dtype = str(facts.operands).removeprefix("torch.")
                if "kernel" not in entry:
                    alone = taken_of(compiled_with(facts, ALONE, target(gpu)).taken)
                    entry["kernel"] = kernel_facts(facts, alone) | {"operands": (dtype, dtype)}
                for name in names:
                    label = name if dtype == "bfloat16" else f"{name}, {dtype}"
                    if label in entry["fused"]:
                        continue
                    fused = compiled_with(facts, EPILOGUES[name], target(gpu))
                    assert fused.epilogue is not None
                    entry["fused"][label] = asdict(taken_of(fused.taken))
                    store["epilogues"][label] = asdict(fused.epilogue)
                    print(key, "|", label, "|", entry["fused"][label], flush=True)
                    write(out, store)


def lower_networks(store: dict[str, Any]) -> None:
    """Lower one layer of each network, and store its fusions with their times and resources."""
    from benchmarks.fusion.arms import lowered
    from benchmarks.fusion.facts import Gathering, every_kernel, read
    from benchmarks.fusion.models import MODELS

    networks: list[dict[str, Any]] = []
    for model, make in MODELS.items():
        bench = Gathering(Cost(target("H100"), "digest"), read())
        with tempfile.TemporaryDirectory(prefix="fusions-") as folder, every_kernel():
            lowered(functools.partial(make, 1), "ours", bench, Path(folder))
        networks += [
            {"gpu": "H100", **facts, "name": f"{model}: {facts['name']}"} for facts in bench.cases
        ]
    store["networks"] = networks


def table(sums: Mapping[str, Any]) -> Table:
    """Return the table of all kinds and ways."""
    result = Table(
        "cases", "", "way", "compiled", "in vain", "measured", "nothing", "slower", "at most"
    )
    for kind, part in sums.items():
        for way in WAYS:
            counts = part[way]
            result.add_row(
                kind if way == "all" else "",
                str(part["cases"]) if way == "all" else "",
                way,
                str(counts["compiled"]),
                str(counts["compiled_in_vain"]),
                str(counts["measured"]),
                str(counts["nothing_measured"]),
                str(counts["slower_than_all"]),
                f"{counts['slower_by_at_most']:.1%}",
            )
    return result


def write(out: Path, store: Mapping[str, Any]) -> None:
    """Write the file, with each innermost list or object on one line."""
    text = json.dumps(store, indent=1)
    leaves = re.compile(r"[\[{]\n[^\[\]{}]*[\]}]")
    text = leaves.sub(lambda leaf: re.sub(r"\n\s*", " ", leaf[0]), text)
    out.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Compile what is missing, decide, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compare-only", action="store_true", help="compile and lower nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    store: dict[str, Any] = {"made_by": versions(), "epilogues": {}, "kernels": {}, "networks": []}
    if arguments.out.exists():
        stored = json.loads(arguments.out.read_text(encoding="utf-8"))
        if arguments.compare_only or stored["made_by"] == store["made_by"]:
            store = stored
    if not arguments.compare_only:
        compile_stress(store, arguments.out)
        lower_networks(store)
    store["rows"] = [row_of(case) for case in cases_of(store)]
    store["summary"] = summaries(store["rows"])
    write(arguments.out, store)
    console = Console(width=150)
    console.print(table(store["summary"]))
    for kind, part in store["summary"].items():
        console.print(kind, {name: value for name, value in part.items() if name not in WAYS})
    return 0


if __name__ == "__main__":
    sys.exit(main())
