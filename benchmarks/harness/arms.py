"""Arms of a benchmark: processes that serve requests, sampled in turns so that clock drift affects all equally."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.resume import Budget
from benchmarks.harness.sources import sources_digest

SAMPLE_S = 60.0
_END_S = 10.0
OVER = "the budget ended before its answer"


class Arm:
    """The process of an arm; it starts with the first request, and again after it died."""

    def __init__(self, name: str, folder: Path, module: str, *, dry: bool) -> None:
        """Keep the caches of an arm under ``folder``; its process runs ``module``."""
        self.name = name
        self._module = module
        self._folder = folder / name
        self._dry = dry
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the answer, or ``{"failed": reason}``."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], limit_s)
            line = process.stdout.readline() if ready else ""
        except OSError as error:
            self.stop()
            return {"failed": f"its process ended: {error}"}
        if not line:
            code = process.poll()
            self.stop()
            why = f"no answer within {limit_s:.0f} s" if code is None else f"it ended with {code}"
            return {"failed": why}
        answer: dict[str, Any] = json.loads(line)
        if answer.get("fatal"):
            self.stop()  # its device may be broken
        return answer

    def stop(self) -> None:
        """Kill the process and its children."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                process.communicate(timeout=_END_S)  # closes its pipes, and waits

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / "inductor")}
            environment.pop("TRITON_CACHE_DIR", None)
            command = [sys.executable, "-m", self._module, self.name, str(self._folder)]
            with (self._folder / "stderr.txt").open("a") as log:
                self._process = subprocess.Popen(
                    [*command, *(["--dry"] if self._dry else [])],
                    cwd=REPOSITORY,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
        return self._process


def raced(
    request: Mapping[str, Any],
    processes: Sequence[Arm],
    budget: Budget,
    arm_s: float,
    rounds: int,
) -> tuple[dict[str, Any], bool]:
    """Return each arm's report of a call, and whether all finished within the budget.

    Each arm compiles, then all are sampled in turns. No request may take more than the remaining budget.
    """
    reports: dict[str, dict[str, Any]] = {}
    prepare_s: dict[str, float] = {}
    for arm in processes:
        before_s = budget.spent_s()
        reports[arm.name] = asked(arm, request, budget, arm_s)
        prepare_s[arm.name] = round(budget.spent_s() - before_s, 3)
    whole = all(arm.get("failed") != OVER for arm in reports.values())
    working = [arm for arm in processes if "failed" not in reports[arm.name]]
    samples: dict[str, list[float]] = {arm.name: [] for arm in working}
    turn_order = [arm for number in range(rounds) for arm in turned(working, number)]
    for arm in turn_order:
        if "failed" in reports[arm.name]:
            continue
        report = asked(arm, {"do": "sample"}, budget, SAMPLE_S)
        if report.get("failed") == OVER:
            whole = False
            break
        if "failed" in report:
            reports[arm.name] = report
        else:
            samples[arm.name].append(report["ms"])
    for name, times_ms in samples.items():
        if times_ms and "failed" not in reports[name]:
            reports[name] |= {"median_ms": statistics.median(times_ms), "samples_ms": times_ms}
        elif not whole and "failed" not in reports[name]:
            reports[name] = {"failed": OVER}
    return {"prepare_s": prepare_s, "arms": reports}, whole


def turned(processes: Sequence[Arm], number: int) -> list[Arm]:
    """Return the arms in the order of a round; each round starts with the next arm."""
    first = number % max(1, len(processes))
    return [*processes[first:], *processes[:first]]


def asked(arm: Arm, request: Mapping[str, Any], budget: Budget, most_s: float) -> dict[str, Any]:
    """Return an arm's answer within the remaining budget, at most ``most_s`` seconds."""
    limit_s = min(most_s, budget.rest_s())
    if limit_s <= 0:
        return {"failed": OVER}
    answer = arm.ask(request, limit_s)
    late = "no answer" in answer.get("failed", "")
    return {"failed": OVER} if late and limit_s < most_s else answer


@contextlib.contextmanager
def arms(names: Iterable[str], module: str, *, dry: bool) -> Generator[list[Arm], None, None]:
    """Yield the arms, each with empty caches; kill them after the block."""
    with tempfile.TemporaryDirectory(prefix="arms-", ignore_cleanup_errors=True) as folder:
        processes = [Arm(name, Path(folder), module, dry=dry) for name in names]
        try:
            yield processes
        finally:
            for arm in processes:
                arm.stop()


def machine(sources: Sequence[str], *, dry: bool) -> dict[str, Any] | None:
    """Return the facts of machine and sources, None without a GPU.

    Args:
        sources: Sources that rows depend on; if they changed, all rows are measured again.
        dry: Run on a CPU, to check the benchmark itself.
    """
    torch = importlib.import_module("torch")
    environment = importlib.import_module("inductor_plugin.tuning.environment")
    if not dry and not torch.cuda.is_available():
        return None
    facts: dict[str, Any] = {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "dry": dry,
        "gpu": "cpu" if dry else torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "triton": importlib.import_module("triton").__version__,
        "driver": "" if dry else driver(),
        "commit": commit(),
        "sources": sources_digest(sources),
    }
    return facts | {"environment": environment.environment("cpu" if dry else "cuda:0")}


def commit() -> str:
    """Return the commit of the checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def driver() -> str:
    """Return the version of NVIDIA's driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip()
