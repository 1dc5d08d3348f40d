"""The demo: a second process reuses everything the first one tuned."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.aot import models
from inductor_plugin.config import default_cache_dir, process_environment
from inductor_plugin.errors import OptionError, WorkerDiedError, WorkerTimeoutError
from inductor_plugin.tuning.counters import Stats

_FOLDER = ".demo-cache"


@dataclass(frozen=True)
class Run:
    """Report of one process of the demo.

    Attributes:
        torch: Version of torch.
        compile_s: Seconds of the first call, which compiles.
        process_s: Seconds of the whole process, imports included.
        error: Root mean square of the difference to eager, relative to eager's.
        tolerance: Largest accepted ``error``.
        stats: Counters of the plugin.
        provisional: Problems that a later process measures again, since other work on the machine has prolonged samples.
    """

    torch: str
    compile_s: float
    process_s: float
    error: float
    tolerance: float
    stats: Stats
    provisional: int = 0


@dataclass(frozen=True)
class DemoReport:
    """The two processes of the demo.

    Attributes:
        model: ``module:function``.
        device: ``cpu`` or ``cuda``.
        cache_dir: The plugin's cache, used by both.
        first: The first process; the cache may have held records before it.
        second: The process that ran after it.
        problems: Deviations from what the plugin promises; empty if there are none.
    """

    model: str
    device: str
    cache_dir: str
    first: Run
    second: Run
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values; an ``error`` that is no number is None."""
        plain = asdict(self)
        for run in (plain["first"], plain["second"]):
            run["error"] = run["error"] if math.isfinite(run["error"]) else None
        return plain


def run_demo(
    model: str | None = None,
    cache_dir: Path | None = None,
    say: Callable[[str], None] = print,
    timeout_s: float = 3600.0,
) -> DemoReport:
    """Compile a model in two processes, one after the other, and compare the work they did.

    Args:
        model: ``module:function``; a Llama-style decoder by default.
        cache_dir: The plugin's cache; by default a separate folder, emptied first.
        say: Called with each line of progress.
        timeout_s: Seconds one process may take.

    Raises:
        WorkerError: A process died or took too long.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model or (models.SMALL if device == "cuda" else models.TINY)
    folder = cache_dir or _own_folder()
    command = ("--model", model, "--device", device, "--cache-dir", str(folder), "--table")
    say(f"{model} on {device}, torch {torch.__version__}\n")
    say(f"1. The first process. Cache: {folder}")
    first = _run((*command, "on"), device, timeout_s)
    _print_run(first, say)
    say("2. The next process. Inductor's own caches are empty again; the plugin's cache is kept.")
    second = _run((*command, "off"), device, timeout_s)
    _print_run(second, say)
    return DemoReport(model, device, str(folder), first, second, judge(first, second))


def judge(first: Run, second: Run) -> tuple[str, ...]:
    """Return how the two processes deviate from what the plugin promises."""
    problems: list[str] = []
    for name, run in (("first", first), ("second", second)):
        if not run.error <= run.tolerance:
            problems.append(
                f"the {name} process is off eager by {run.error:.2g}, allowed is {run.tolerance:g}"
            )
    if first.stats.problems == 0:
        problems.append("nothing was tuned: Inductor handed over no call with several candidates")
    repeated = min(second.stats.record_misses, first.provisional)
    counts = {"compiled": second.stats.compiled}
    counts["record_misses"] = second.stats.record_misses - repeated
    if not repeated:
        counts["benchmarked"] = second.stats.benchmarked
    problems += [
        f"the second process has {counter} = {count}, expected 0"
        for counter, count in counts.items()
        if count
    ]
    return tuple(problems)


def _own_folder() -> Path:
    """Return the demo's cache folder, emptied so that the first process always tunes."""
    parent = default_cache_dir()
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = parent / _FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    return folder


def _run(arguments: tuple[str, ...], device: str, timeout_s: float) -> Run:
    """Run one process of the demo on a fresh Inductor cache."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="inductor-plugin-demo-") as inductor_cache:
        environment = process_environment() | {"TORCHINDUCTOR_CACHE_DIR": inductor_cache}
        if device == "cpu":
            # On a CPU Inductor has several kernels to choose from only for frozen weights, and
            # Dynamo reads the option before the backend's options apply.
            environment["TORCHINDUCTOR_FREEZING"] = "1"
        try:
            done = subprocess.run(
                (sys.executable, "-m", "inductor_plugin.cli.demo_child", *arguments),
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise WorkerTimeoutError(
                f"a process of the demo took more than {timeout_s:g} s; try a smaller model, or "
                "max_candidates to try fewer kernels"
            ) from error
    if done.returncode == 2:
        raise OptionError("no process of the demo could start; the reason is above")
    if done.returncode != 0:
        raise WorkerDiedError(
            f"a process of the demo ended with status {done.returncode}; the reason is above"
        )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    stats = Stats(**report.pop("stats"))
    return Run(**report, process_s=time.perf_counter() - start, stats=stats)


def _print_run(run: Run, say: Callable[[str], None]) -> None:
    stats = run.stats
    error = "the same bits" if run.error == 0 else f"{run.error:.1g}"
    if math.isnan(run.error):
        error = "not a number"
    say(
        f"   {stats.problems} problems, {stats.record_hits} of them known: "
        f"{stats.compiled} kernels compiled, {stats.benchmarked} candidates measured\n"
        f"   {run.compile_s:.1f} s to compile the model, {stats.wall_s:.1f} s of it tuning; "
        f"difference to eager: {error}\n"
    )
    if run.provisional:
        say(
            f"   {run.provisional} problems were measured beside other work on this machine, and will be again\n"
        )
