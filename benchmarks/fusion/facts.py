"""Resources of the kernels of `benchmarks.fusion.fusions` on an H100: compiled by Triton, no GPU needed.

    python -m benchmarks.fusion.facts [--models bert,gpt2,llama] [--out FILE]

For each product that Inductor may fuse: all its Triton kernels, bare and with each epilogue.
Registers and spills come from the machine code; they hardly depend on sizes, so one layer is enough.
Kernels that are in the file already are not compiled again.
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
    """Collects the compile jobs of products that have an epilogue."""

    def __init__(self, cost: Cost) -> None:
        """Collect nothing yet; times come from ``cost``."""
        super().__init__(cost, Counts(), {})
        self.jobs: dict[str, TritonCompileJob] = {}
        self._bare: dict[str, TritonCompileJob] = {}

    def expect(self, task: Task) -> None:
        """Collect the candidates of a task."""
        super().expect(task)
        for entry in task.entries:
            if not isinstance(entry.build, TritonCompileJob):
                continue
            work = self.works.get(entry.build.source)
            if task.problem.epilogue and work is None:
                continue  # the product alone, in front of its epilogue
            if work is not None:
                self.jobs[work.kernel] = entry.build
                if work.name in self._bare:
                    self.jobs[work.name] = self._bare[work.name]
            else:
                self._bare.setdefault(f"{entry.name} {entry.description}", entry.build)


class Gathering(Bench):
    """Collects the estimate of each fused kernel, and its resources."""

    def __init__(self, cost: Cost, facts: Facts) -> None:
        """Collect nothing yet; times come from ``cost``, resources from ``facts``."""
        super().__init__(cost, Counts(), facts)
        self._cases: dict[str, dict[str, Any]] = {}

    @property
    def cases(self) -> list[dict[str, Any]]:
        """Each fusion once: its epilogue, its time as two kernels, its candidates."""
        return list(self._cases.values())

    def expect(self, task: Task) -> None:
        """Collect the candidates of a fusion."""
        super().expect(task)
        candidates: list[dict[str, Any]] = []
        for entry in task.entries:
            estimate = getattr(entry.judge, "__self__", None)
            if not isinstance(estimate, FusionEstimate):
                continue
            assert isinstance(entry.build, TritonCompileJob)
            work = self.works[entry.build.source]
            resources = self.facts[work.kernel]
            candidates.append(
                {
                    "name": work.name,
                    "kernel": asdict(estimate.kernel),
                    "unfused_us": estimate.unfused_us,
                    "fused_us": self.cost.generated(work),
                    "fused": {
                        "registers": resources.registers,
                        "spilled_bytes": resources.spills,
                        "shared_bytes": resources.shared_bytes,
                    },
                }
            )
            self._cases[task.digest] = {
                "name": f"{work.product} {work.label}",
                "epilogue": asdict(estimate.epilogue),
                "candidates": candidates,
            }

    def screen(self, job: ScreenJob) -> Outcome:
        """Return the time of a candidate; keep that of the two kernels of a fusion."""
        outcome = super().screen(job)
        if job.candidate.candidate_id.startswith("unfused."):
            self._cases[job.problem_id]["apart_us"] = 1e3 * outcome.samples_ms[0]
        return outcome


def main() -> int:
    """Compile the kernels that the file lacks, and write the file after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    kernels = dict(read(arguments.out))
    for name in arguments.models.split(","):
        jobs = collected(name)
        for number, (kernel, job) in enumerate(sorted(jobs.items())):
            if kernel not in kernels:
                started = time.perf_counter()
                kernels[kernel] = compiled(job)
                write(arguments.out, kernels)
                took = time.perf_counter() - started
                print(f"{name} {number + 1}/{len(jobs)} {took:.1f} s {kernel}", flush=True)
    print(f"{len(kernels)} kernels in {arguments.out}.")
    return 0


def collected(model: str) -> dict[str, TritonCompileJob]:
    """Return the compile jobs of a network's products with an epilogue, by `Work.kernel`."""
    bench = Collecting(Cost(target("H100"), "digest"))

    with tempfile.TemporaryDirectory(prefix="fusions-") as folder, every_kernel():
        lowered(functools.partial(MODELS[model], 1), "ours", bench, Path(folder))
    return bench.jobs


@contextmanager
def every_kernel() -> Generator[None, None, None]:
    """Compile each fused kernel, whatever the model predicts."""

    def nothing(*_: object) -> None:
        return None

    with (
        replaced(Shortlist, "_dominated", nothing),
        replaced(Shortlist, "_enough", nothing),
        replaced(FusionEstimate, "why_not", nothing),
    ):
        yield


def compiled(job: TritonCompileJob) -> Resources:
    """Return the resources of one kernel; all None where it does not compile."""
    with tempfile.TemporaryDirectory(prefix="fusions-") as folder:
        environment = {**dict(job.environment), "TRITON_CACHE_DIR": folder}
        private = replace(job, environment=tuple(sorted(environment.items())))
        try:
            resources = inductor.compile_triton(private)
        except Exception as error:  # noqa: BLE001  Triton raises many kinds
            print(f"does not compile: {type(error).__name__}: {error}"[:200], flush=True)
            resources = None
    return resources or Resources()


def read(path: Path = OUT) -> Facts:
    """Return the kernels of a file; empty if there is no file."""
    if not path.is_file():
        return {}
    plain = json.loads(path.read_text(encoding="utf-8"))
    return {name: Resources(**resources) for name, resources in plain["kernels"].items()}


def write(path: Path, resources: Mapping[str, Resources]) -> None:
    """Write the kernels to a file."""
    kernels = {name: asdict(resources[name]) for name in sorted(resources)}
    text = json.dumps({"target": "H100", "kernels": kernels}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
