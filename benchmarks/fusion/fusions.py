"""How many fused kernels are measured: Inductor's own way, and after static pruning. No GPU needed.

    python -m benchmarks.fusion.fusions [--models bert,gpt2,llama] [--settings digest,...] [--out FILE]

The forward passes of BERT-base, GPT-2 small and 8 layers of Llama-3-8B (`models`) are lowered
for an H100 three times, with the same products, candidates and times:

    stock   Inductor's `speedup_by_fusion` as it is: the epilogue apart, and fused into the fastest
            Triton kernel (``max_epilogue_benchmarked_choices`` = 1)
    all     the same with every Triton kernel, which finds the best fused kernel
    ours    the plugin's: pruned first, then `unfused` against the remaining kernels, recorded

Times come from `cost`, one model for all arms, in four settings; the first counts all layers,
the others two (a further layer repeats the same kernels). Spills are not modelled: the kernels were
compiled (`facts`). A fused kernel that spills is infinitely slow here, as Inductor assumes.

A benchmark is counted once for each different kernel: Inductor keeps the time of a kernel's text
(``.kernel_perf``), the plugin a record. ``asked`` counts every request of each layer. A final choice is
whether a pair is fused, and into which kernel; where all choices are equal, so is the code.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.fusion.arms import Arm, Counts, Facts, counted
from benchmarks.fusion.cost import SETTINGS, Cost, Setting
from benchmarks.fusion.facts import read
from benchmarks.fusion.models import MODELS, ModelWithInputs
from benchmarks.fusion.work import kind_of
from benchmarks.harness.repository import RESULTS
from inductor_plugin.problem.target import target

OUT = RESULTS / "fusions.json"
TARGET = "H100"
LAYERS = 2
"""Layers of a network in the settings after the first."""
_AOT_ID = re.compile(r"# AOT ID: .*")
_RANGE = re.compile(r"^.*inductor_plugin\.ops\.ranges\b.*\n", re.MULTILINE)
GOAL = 0.60
"""Share of Inductor's benchmarks that pruning has to avoid."""


def main() -> int:
    """Count, print, write; ends non-zero where the goal is missed or a final choice differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--layers", type=int, default=0, help="of each network; 0 for all of them")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    facts, rows = read(), list[dict[str, Any]]()
    settings: list[Any] = arguments.settings.split(",")
    for place, setting in enumerate(settings):
        for name in arguments.models.split(","):
            layers = arguments.layers or (LAYERS if place else 0)
            make = functools.partial(MODELS[name], layers) if layers else MODELS[name]
            row = {"model": name, "layers": layers or "all", **compared(make, setting, facts)}
            rows.append(row)
            print(line(row), flush=True)
    sums = {setting: summary(rows, setting) for setting in settings}
    report = {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "target": TARGET,
        "goal": GOAL,
        "summary": sums,
        "rows": rows,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(sums, indent=1))
    print(f"Written to {arguments.out}.")
    return 0 if all(part["kept"] for part in sums.values()) else 1


def compared(make: Callable[[], ModelWithInputs], setting: Setting, facts: Facts) -> dict[str, Any]:
    """Return the counts of the three arms for one network in one setting."""
    cost = Cost(target(TARGET), setting)
    stock, every, ours = (_counted(make, arm, cost, facts) for arm in ("stock", "all", "ours"))
    measured = len(set(ours.screened)) + distinct(ours)
    return {
        "setting": setting,
        "stock": _inductors(stock),
        "all": _inductors(every),
        "ours": {
            "pairs": len(ours.pairs),
            "fused": sum(ours.pairs.values()),
            "asked": ours.asked,
            "pairs_pruned": ours.pruned,
            "pairs_by_reason": dict(Counter(map(kind_of, ours.refused.values()))),
            "kernels_by_reason": dict(ours.rejected),
            "problems": ours.problems,
            "saved_by_records": ours.asked - ours.pruned - ours.problems,
            "benchmarks": measured,
            "unfused": sum(name.startswith("unfused.") for _, name in set(ours.screened)),
            "fused_kernels": sum(name.startswith("fused.") for _, name in set(ours.screened)),
            "inductors_own": distinct(ours),
            "compiled": len(set(ours.compiled)),
        },
        "fewer_than_all": share(measured, distinct(every)),
        "fewer_than_stock": share(measured, distinct(stock)),
        "fewer_than_stock_asks": share(measured, len(stock.calls)),
        "same_code_as_all": code(every) == code(ours),
        "differs_from_all": differences(every, ours),
        "differs_from_stock": differences(stock, ours),
    }


def _counted(make: Callable[[], ModelWithInputs], arm: Arm, cost: Cost, facts: Facts) -> Counts:
    with tempfile.TemporaryDirectory(prefix="fusions-") as folder:
        return counted(make, arm, cost, Path(folder), facts)


def _inductors(counts: Counts) -> dict[str, Any]:
    return {
        "pairs": len(counts.pairs),
        "fused": sum(counts.pairs.values()),
        "asked": len(counts.calls),
        "benchmarks": distinct(counts),
        "apart": len({source for _, what, source in counts.calls if what == "apart"}),
        "fused_kernels": len({source for _, what, source in counts.calls if what == "fused"}),
        "compiled": len(set(counts.compiled)),
    }


def distinct(counts: Counts) -> int:
    """Return how many different kernels Inductor itself measured."""
    return len({source for _, _, source in counts.calls})


def share(ours: int, theirs: int) -> float | None:
    """Return the share of ``theirs`` that is avoided; None if there are none."""
    return round(1 - ours / theirs, 3) if theirs else None


def differences(theirs: Counts, ours: Counts) -> list[str]:
    """Return the pairs whose final choice differs: whether they are fused, and the kernel."""
    changes: list[str] = []
    for pair in sorted({*theirs.pairs, *ours.pairs}):
        before, after = (_chosen(counts, pair) for counts in (theirs, ours))
        if before != after:
            changes.append(f"{pair[0]} + {pair[1]} ({pair[2]}): {before} became {after}")
    return changes


def code(counts: Counts) -> list[str]:
    """Return the code that Inductor generated, without the number of the compile and the names of a profile's ranges."""
    return [_RANGE.sub("", _AOT_ID.sub("", text)) for text in counts.code]


def _chosen(counts: Counts, pair: tuple[str, str, str]) -> str:
    if not counts.pairs.get(pair):
        return "apart"
    return counts.kernels.get(counts.products[pair], "fused")


def summary(rows: Sequence[Mapping[str, Any]], setting: Setting) -> dict[str, Any]:
    """Return the sums over all networks in one setting, and whether the goal is reached."""
    selected = [row for row in rows if row["setting"] == setting]
    benchmarks = {
        arm: sum(row[arm]["benchmarks"] for row in selected) for arm in ("stock", "all", "ours")
    }
    fewer = share(benchmarks["ours"], benchmarks["all"])
    reasons: Counter[str] = Counter()
    for row in selected:
        reasons.update(row["ours"]["kernels_by_reason"])
    same = not any(row["differs_from_all"] for row in selected)
    return {
        "benchmarks": benchmarks,
        "asked": {arm: sum(row[arm]["asked"] for row in selected) for arm in ("stock", "all")},
        "kernels_by_reason": dict(reasons),
        "pairs_pruned": sum(row["ours"]["pairs_pruned"] for row in selected),
        "saved_by_records": sum(row["ours"]["saved_by_records"] for row in selected),
        "fewer_than_all": fewer,
        "fewer_than_stock": share(benchmarks["ours"], benchmarks["stock"]),
        "differs_from_all": sum(len(row["differs_from_all"]) for row in selected),
        "differs_from_stock": sum(len(row["differs_from_stock"]) for row in selected),
        "kept": same and (fewer is None or fewer >= GOAL),
    }


def line(row: Mapping[str, Any]) -> str:
    """Return one network's counts in one line."""
    counts = ", ".join(f"{arm} {row[arm]['benchmarks']}" for arm in ("stock", "all", "ours"))
    return (
        f"{row['setting']:7} {row['model']:6} {row['ours']['pairs']} pairs; benchmarks: {counts}; "
        f"other choices than all: {len(row['differs_from_all'])}, "
        f"than stock: {len(row['differs_from_stock'])}"
    )


if __name__ == "__main__":
    sys.exit(main())
