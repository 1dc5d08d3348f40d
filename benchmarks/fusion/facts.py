"""What the kernels of `benchmarks.fusion.fusions` take of an H100: compiled by Triton, no GPU needed.

    python -m benchmarks.fusion.facts [--models bert,gpt2,llama] [--out FILE]

Each product that Inductor may fuse something with: all its Triton kernels, bare and with each epilogue.
Registers and spills come from the machine code; they hardly depend on sizes, so one layer is enough.
What the file has already is not compiled again.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.fusion.arms import Bench, Counts, Facts, lowered
from benchmarks.fusion.cost import Cost
from benchmarks.fusion.models import MODELS
from benchmarks.harness.repository import RESULTS
from inductor_plugin.aot.fake_device import replaced
from inductor_plugin.cache import Resources
from inductor_plugin.cost.shortlist import FusionEstimate, Shortlist
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.child import inductor
from inductor_plugin.worker.jobs import Outcome, ScreenJob, TritonCompileJob

OUT = RESULTS / "fusion_facts.json"


class Collecting(Bench):
    """Notes the compile jobs of products that have an epilogue."""

    def __init__(self, cost: Cost) -> None:
        """Collect; the times are ``cost``'s."""
        super().__init__(cost, Counts(), {})
        self.jobs: dict[str, TritonCompileJob] = {}
        self._bare: dict[str, TritonCompileJob] = {}

    def expect(self, task: Task) -> None:
        """Note the candidates of a task."""
        super().expect(task)
        for one in task.entries:
            if not isinstance(one.build, TritonCompileJob):
                continue
            work = self.works.get(one.build.source)
            if task.problem.epilogue and work is None:
                continue  # the product alone, in front of its epilogue
            if work is not None:
                self.jobs[work.kernel] = one.build
                if work.name in self._bare:
                    self.jobs[work.name] = self._bare[work.name]
            else:
                self._bare.setdefault(f"{one.name} {one.description}", one.build)


class Gathering(Bench):
    """Notes what each fused kernel was estimated from, and what it takes."""

    def __init__(self, cost: Cost, facts: Facts) -> None:
        """Gather; times are ``cost``'s, resources those of ``facts``."""
        super().__init__(cost, Counts(), facts)
        self._cases: dict[str, dict[str, Any]] = {}

    @property
    def cases(self) -> list[dict[str, Any]]:
        """Each fusion once: its epilogue, its time as two kernels, its candidates."""
        return list(self._cases.values())

    def expect(self, task: Task) -> None:
        """Note the candidates of a fusion."""
        super().expect(task)
        candidates: list[dict[str, Any]] = []
        for entry in task.entries:
            estimate = getattr(entry.judge, "__self__", None)
            if not isinstance(estimate, FusionEstimate):
                continue
            assert isinstance(entry.build, TritonCompileJob)
            work = self.works[entry.build.source]
            taken = self.facts[work.kernel]
            candidates.append(
                {
                    "name": work.name,
                    "kernel": asdict(estimate.kernel),
                    "unfused_us": estimate.unfused_us,
                    "fused_us": self.cost.generated(work),
                    "fused": {
                        "registers": taken.registers,
                        "spilled_bytes": taken.spills,
                        "shared_bytes": taken.shared_bytes,
                    },
                }
            )
            self._cases[task.digest] = {
                "name": f"{work.product} {work.label}",
                "epilogue": asdict(estimate.epilogue),
                "candidates": candidates,
            }

    def screen(self, job: ScreenJob) -> Outcome:
        """Say what a candidate takes, and note it of two kernels."""
        outcome = super().screen(job)
        if job.candidate.candidate_id.startswith("unfused."):
            self._cases[job.problem_id]["apart_us"] = 1e3 * outcome.samples_ms[0]
        return outcome


def main() -> int:
    """Compile what the file has not, and write it down after each kernel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    known = dict(read(arguments.out))
    for name in arguments.models.split(","):
        jobs = collected(name)
        for number, (kernel, job) in enumerate(sorted(jobs.items())):
            if kernel not in known:
                started = time.perf_counter()
                known[kernel] = compiled(job)
                write(arguments.out, known)
                took = time.perf_counter() - started
                print(f"{name} {number + 1}/{len(jobs)} {took:.1f} s {kernel}", flush=True)
    print(f"{len(known)} kernels in {arguments.out}.")
    return 0


def collected(model: str) -> dict[str, TritonCompileJob]:
    """Return the compile jobs of a network's products with an epilogue, by `Work.kernel`."""
    bench = Collecting(Cost(target("H100"), "digest"))

    with tempfile.TemporaryDirectory(prefix="fusions-") as folder, every_kernel():
        lowered(functools.partial(MODELS[model], 1), "ours", bench, Path(folder))
    return bench.jobs


@contextmanager
def every_kernel() -> Generator[None, None, None]:
    """Compile each kernel fused, whatever is predicted of it."""

    def nothing(*_: object) -> None:
        return None

    with (
        replaced(Shortlist, "_dominated", nothing),
        replaced(Shortlist, "_enough", nothing),
        replaced(FusionEstimate, "why_not", nothing),
    ):
        yield


def compiled(job: TritonCompileJob) -> Resources:
    """Return what one kernel takes; all unknown where it does not compile."""
    with tempfile.TemporaryDirectory(prefix="fusions-") as folder:
        environment = {**dict(job.environment), "TRITON_CACHE_DIR": folder}
        private = replace(job, environment=tuple(sorted(environment.items())))
        try:
            found = inductor.compile_triton(private)
        except Exception as error:  # noqa: BLE001  Triton raises many kinds
            print(f"does not compile: {type(error).__name__}: {error}"[:200], flush=True)
            found = None
    return found or Resources()


def read(path: Path = OUT) -> Facts:
    """Return the kernels of a file; none where there is no file."""
    if not path.is_file():
        return {}
    plain = json.loads(path.read_text(encoding="utf-8"))
    return {name: Resources(**one) for name, one in plain["kernels"].items()}


def write(path: Path, known: Mapping[str, Resources]) -> None:
    """Write the kernels to a file."""
    kernels = {name: asdict(known[name]) for name in sorted(known)}
    text = json.dumps({"target": "H100", "kernels": kernels}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
