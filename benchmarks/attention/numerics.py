"""The worst errors of the Triton attention kernels against float64, over all cases, without a GPU.

    python -m benchmarks.attention.numerics [--part forward backward] [--group masks ...]
                                            [--out benchmarks/results/attention_numerics.json]

The kernels are as Inductor generates them, and run in Triton's interpreter. An error is relative to
1 + the value (forward), or to the largest gradient (backward); infinite where NaN or inf differ. Rows
for parts and groups that are not asked for stay as they are in the file. Ends with 1 where one exceeds
its tolerance, a few units in the last place of the operands' type.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.harness.repository import RESULTS
from benchmarks.harness.sources import sources_digest
from tests.support import gpu, triton_interpreter
from tests.support.attention import backward_cases as backward
from tests.support.attention import forward_cases as forward
from tests.support.attention.lowering import computed, graph, module_of

OUT = RESULTS / "attention_numerics.json"
SOURCES = {
    "forward": (
        "templates/triton_attention/forward.jinja",
        "templates/triton_attention/decode.jinja",
    ),
    "backward": ("templates/triton_attention/backward.jinja",),
}
"""What the kernels of each part are made of, but for their constants, which the cases tell."""
CHUNK = 40
"""Cases of one process, so that something is written while the others run."""


@dataclass(frozen=True)
class Worst:
    """The worst errors of a group of cases of one type.

    Attributes:
        part: ``forward`` or ``backward``.
        group: What its cases try.
        dtype: Type of q, k and v.
        cases: How many there are.
        errors: The worst error of each result, by its name.
        tolerance: What is accepted of the first results; lse, in float32, has its own.
    """

    part: str
    group: str
    dtype: str
    cases: int
    errors: dict[str, float]
    tolerance: float

    @property
    def wrong(self) -> bool:
        """Whether an error is not accepted."""
        others = {name: error for name, error in self.errors.items() if name != "lse"}
        lse = self.errors.get("lse", 0.0)
        return max(others.values()) > self.tolerance or lse > forward.LSE_TOLERANCE


def forward_errors(trials: Sequence[forward.Trial]) -> Iterator[dict[str, float]]:
    """Yield the errors of each trial's results."""
    for out, lse in computed(trials):
        yield {"out": out, "lse": lse}


def backward_errors(trials: Sequence[backward.Trial]) -> Iterator[dict[str, float]]:
    """Yield the errors of each trial's gradients."""
    modules: list[tuple[str, list[torch.Tensor]]] = []
    exact: list[Any] = []
    with gpu.installed(), graph():
        for number, one in enumerate(trials):
            given, expected = backward.operands_of(one.case, number)
            problem = backward.problem_of(one.case, given)
            made = module_of(problem, backward.candidate_of(one, problem))
            modules.append((made, [*given.values()]))
            exact.append(expected)
    for found, expected in zip(triton_interpreter.outputs(modules), exact, strict=True):
        yield backward.errors(found, expected)


def worst(
    part: str, trials: Sequence[Any], errors: Callable[[Sequence[Any]], Iterator[dict[str, float]]]
) -> list[Worst]:
    """Compute all trials of one group and type, and return the worst of each result."""
    kinds = sorted({(one.group, str(one.case.dtype).removeprefix("torch.")) for one in trials})
    tolerances = (forward if part == "forward" else backward).TOLERANCE
    made: list[Worst] = []
    for group, dtype in kinds:
        kind = getattr(torch, dtype)
        mine = [one for one in trials if (one.group, one.case.dtype) == (group, kind)]
        found: dict[str, float] = {}
        for start in range(0, len(mine), CHUNK):
            for one in errors(mine[start : start + CHUNK]):
                found |= {name: max(found.get(name, 0.0), error) for name, error in one.items()}
        made.append(Worst(part, group, dtype, len(mine), found, tolerances[kind]))
        print(" ".join(f"{value}" for value in asdict(made[-1]).values()), flush=True)
    return made


def joined(out: Path, rows: Sequence[Worst], digests: Mapping[str, str]) -> list[Worst]:
    """Return these rows, and those of a file that were made with the same sources."""
    old: list[Worst] = []
    if out.exists():
        told: dict[str, Any] = json.loads(out.read_text())
        old = [Worst(**one) for one in told["rows"]]
        old = [one for one in old if told["sources"].get(one.part) == digests[one.part]]
    known = {(one.part, one.group, one.dtype): one for one in [*old, *rows]}
    return [known[key] for key in sorted(known)]


def main() -> int:
    """Compute all, write the file, and say what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", nargs="+", default=list(SOURCES), choices=SOURCES)
    parser.add_argument("--group", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    parts = {
        "forward": (forward.trials, forward_errors),
        "backward": (backward.trials, backward_errors),
    }
    digests = {part: sources_digest(places) for part, places in SOURCES.items()}
    rows: list[Worst] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {"TORCHINDUCTOR_CACHE_DIR": folder}
        with mock.patch.dict("os.environ", environment):
            for part in given.part:
                trials, errors = parts[part]
                wanted = [one for one in trials() if not given.group or one.group in given.group]
                rows += worst(part, wanted, errors)
    told = {
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "sources": digests,
        "rows": [asdict(one) for one in joined(given.out, rows, digests)],
    }
    given.out.write_text(json.dumps(told, indent=1) + "\n")
    wrong = [f"{one.part} {one.group} {one.dtype}: {one.errors}" for one in rows if one.wrong]
    print("\n".join(wrong) or f"{sum(one.cases for one in rows)} cases, none beyond its tolerance")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
