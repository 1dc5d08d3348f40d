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

from benchmarks.harness.child import child_environment
from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.resume import Budget
from benchmarks.harness.sources import sources_digest

SAMPLE_S = 60.0
_END_S = 10.0
_LAST_WORK_S = 60.0
OVER = "the budget ended before its answer"


class Arm:
    """The process of an arm; it starts with the first request, and again after it died."""

    def __init__(
        self,
        name: str,
        folder: Path,
        module: str,
        *,
        dry: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the caches of an arm under ``folder``; its process runs ``module``.

        Args:
            name: The arm.
            folder: Where the folders of all arms are.
            module: What its process runs.
            dry: Run on a CPU.
            environment: Further variables of its process.
        """
        self.name = name
        self._environment = dict(environment or {})
        self._module = module
        self._folder = folder / name
        self._dry = dry
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start its process, if none runs, and do not wait for it."""
        self._running()

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

    def end(self) -> None:
        """Let the process end by itself, with all that it does at its end, and kill what is left; the next request starts another."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdin = None  # `communicate` would flush it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORK_S)
        self.stop()

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
            cache = {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / "inductor")}
            environment = child_environment(**(cache | self._environment))
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
    seldom: str = "",
) -> tuple[dict[str, Any], bool]:
    """Return each arm's report of a call, and whether all finished within the budget.

    Each arm compiles, then all are sampled in turns. An arm that compiles has the rest of the budget to itself
    only if it is the last: `share_s`. What the budget cut is not sampled: the call has to be measured again.

    Args:
        request: What each arm compiles.
        processes: The arms, in the order in which they compile.
        budget: The budget of the run.
        arm_s: Most seconds an arm compiles.
        rounds: Samples of each arm.
        seldom: An arm that is left out of the reports where the budget cut it, for the others count without it.
    """
    reports: dict[str, dict[str, Any]] = {}
    prepare_s: dict[str, float] = {}
    others = sum(arm.name != seldom for arm in processes)
    for arm in processes:
        before_s = budget.spent_s()
        limit_s = share_s(budget.rest_s(), max(1, others))
        reports[arm.name] = asked(arm, request, budget, arm_s, limit_s)
        prepare_s[arm.name] = round(budget.spent_s() - before_s, 3)
        others -= arm.name != seldom
    if reports.get(seldom, {}).get("failed") == OVER:
        del reports[seldom]
    whole = all(report.get("failed") != OVER for report in reports.values())
    if whole:
        whole = _sampled([arm for arm in processes if arm.name in reports], reports, budget, rounds)
    return {"prepare_s": prepare_s, "arms": reports}, whole


def share_s(rest_s: float, arms_left: int) -> float:
    """Return the seconds an arm may compile: no arm may spend what those after it need.

    A tenth is for the samples.

    Args:
        rest_s: What is left of the budget.
        arms_left: Arms that have not compiled, this one among them.
    """
    return 0.9 * rest_s / arms_left


def _sampled(
    processes: Sequence[Arm], reports: dict[str, dict[str, Any]], budget: Budget, rounds: int
) -> bool:
    """Sample the arms that compiled in turns, into their reports; return whether the budget sufficed."""
    working = [arm for arm in processes if "failed" not in reports[arm.name]]
    samples: dict[str, list[float]] = {arm.name: [] for arm in working}
    for arm in [arm for number in range(rounds) for arm in turned(working, number)]:
        if "failed" in reports[arm.name]:
            continue
        report = asked(arm, {"do": "sample"}, budget, SAMPLE_S, budget.rest_s())
        if report.get("failed") == OVER:
            reports[arm.name] = report
            return False
        if "failed" in report:
            reports[arm.name] = report
        else:
            samples[arm.name].append(report["ms"])
    for name, times_ms in samples.items():
        if "failed" not in reports[name]:
            reports[name] |= {"median_ms": statistics.median(times_ms), "samples_ms": times_ms}
    return True


def cut_by_budget(row: Mapping[str, Any]) -> list[str]:
    """Return the arms of a row that the budget cut."""
    return [name for name, report in row["arms"].items() if report.get("failed") == OVER]


def turned(processes: Sequence[Arm], number: int) -> list[Arm]:
    """Return the arms in the order of a round; each round starts with the next arm."""
    first = number % max(1, len(processes))
    return [*processes[first:], *processes[:first]]


def asked(
    arm: Arm, request: Mapping[str, Any], budget: Budget, most_s: float, share_s: float
) -> dict[str, Any]:
    """Return an arm's answer within ``most_s`` seconds, and within its share of the budget."""
    limit_s = min(most_s, share_s, budget.rest_s())
    if limit_s <= 0:
        return {"failed": OVER}
    answer = arm.ask(request, limit_s)
    late = "no answer" in answer.get("failed", "")
    return {"failed": OVER} if late and limit_s < most_s else answer


@contextlib.contextmanager
def arms(
    names: Iterable[str], module: str, *, dry: bool, environment: Mapping[str, str] | None = None
) -> Generator[list[Arm], None, None]:
    """Yield the arms, each with empty caches; kill them after the block. Arguments are as of `Arm`."""
    with tempfile.TemporaryDirectory(prefix="arms-", ignore_cleanup_errors=True) as folder:
        processes = [
            Arm(name, Path(folder), module, dry=dry, environment=environment) for name in names
        ]
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
