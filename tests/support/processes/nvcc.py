"""One process that builds three CUTLASS kernels, one of them broken, and records the outcomes.

Started as ``python -m tests.support.processes.nvcc CACHE LOG [--forget]``. Every call of nvcc adds a line
to LOG; the outcomes are printed as one JSON line. ``--forget`` removes the record first, so that only
kernels and the quarantine are cached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from inductor_plugin.cache import KernelKey, digest_of, open_store
from inductor_plugin.config import Config, process_environment
from inductor_plugin.kernels.nvcc import Toolkit, command, find
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.target import target
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.source import source
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.task import CppBuild, TaskCandidate
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.jobs import Outcome, WorkerSettings
from tests.support.fakes.tasks import bench_candidate, problem
from tests.support.fakes.waiting import until
from tests.support.fakes.workers import spread

ENVIRONMENT = "e" * 16
LIMIT_S = 400.0
ARCH = "sm_80"
PLAIN = GemmConfig(
    ARCH, (64, 64, 32), (1, 1, 1), "multistage", "bf16", "bf16", "bf16", "bf16", "f32", stages=3
)
KERNELS = {
    "plain": PLAIN,
    "broken": replace(PLAIN, stages=4),
    "half": replace(PLAIN, a="f16", b="f16", c="f16", d="f16"),
}


def text_of(name: str) -> str:
    """Return a translation unit; one has an error in the middle."""
    written = source(KERNELS[name])
    return written + ("\nstatic int const broken = no_such_name;\n" if name == "broken" else "")


def build_of(name: str, nvcc: tuple[str, ...]) -> CppBuild:
    """Return the build of a kernel."""
    text = text_of(name)
    digest = hashlib.sha256(text.encode()).hexdigest()
    key = KernelKey("cutlass", digest, name, ARCH, "nvcc", "")
    return CppBuild(key, CppSource(key.digest, text, KERNELS[name].name), nvcc, "cuda", 4 << 30)


def offer(name: str, nvcc: tuple[str, ...]) -> CandidateOffer:
    """Return the offer of a kernel, or of the library kernel for any other name."""
    library = name not in KERNELS

    def prepare(own: CandidateId) -> TaskCandidate:
        build = None if library else build_of(name, nvcc)
        return TaskCandidate(
            own, build=build, bench=lambda _library, _symbol: bench_candidate(name)
        )

    return CandidateOffer(CandidateId(name, name, "template", "", library), prepare)


def main() -> None:
    """Build kernels that are not cached, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--forget", action="store_true")
    arguments = parser.parse_args()
    toolkit = find("", process_environment())
    assert isinstance(toolkit, Toolkit)
    counted = ("sh", "-c", f'echo nvcc >> {arguments.log}; exec "$0" "$@"')
    nvcc = (*counted, *command(toolkit, ARCH))
    store, counters = open_store(arguments.cache), Counters()
    config = Config.load({"cache_dir": str(arguments.cache)}, environ={})
    selection = Selection(config, store, ENVIRONMENT, dict, counters)
    bare = replace(problem(), target=target("A100"))
    if arguments.forget:
        store.layout.record(ENVIRONMENT, bare.op, digest_of(bare.fields())).unlink()
    offers = [offer(name, nvcc) for name in ("library", *KERNELS)]
    ticket = selection.plan(bare, offers, {}, NumberCheck(Tolerance(1.0, 1.0)), None)
    task = ticket.task
    if task is not None:
        settings = WorkerSettings(sys_path=tuple(sys.path), kind="compile")
        pool = CompilePool(1, settings, memory_bytes_per_job=0)
        builder = Builder(store, pool, counters, SpanTrace(), LIMIT_S)
        built = [entry for entry in task.entries if entry.build is not None]
        for entry in built:
            builder.add(task, entry, lambda: None)
        builder.flush()
        until(lambda: all(entry.ready or entry.outcome for entry in built), LIMIT_S)
        pool.close()
        for entry in task.entries:  # results as of a benchmark worker
            entry.outcome = entry.outcome or Outcome(entry.candidate_id, "ok", error=0.0)
            entry.samples_ms = spread(1.0, 5) if entry.alive else ()
        task.finish(task)
    outcomes = {name: [outcome.status, outcome.reason] for name, outcome in ticket.measured.items()}
    kernels = {kernel.key.config: asdict(kernel.resources) for kernel in store.iter_kernels()}
    report = {"hit": ticket.hit, "known": outcomes, "kernels": kernels}
    print(json.dumps({**report, "counted": counters.snapshot().to_dict()}), flush=True)


if __name__ == "__main__":
    main()
