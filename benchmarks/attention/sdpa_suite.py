"""PyTorch's SDPA tests on a CPU: are their outcomes the same with the plugin's lowering on?

    python -m benchmarks.attention.sdpa_suite PATH/test_transformers.py [--limit 8] [--folder DIR] [--out FILE]

PATH is ``test/test_transformers.py`` of a PyTorch checkout. Its tests run in two arms: ``plain``, and
``plugin``, in which `torch.nn.functional.scaled_dot_product_attention` is compiled with the plugin
for each new kind of call. Outcomes are compared test by test. Tests that differ run a third time, with
Inductor alone (``stock``), to see whether the plugin is the cause. An arm is ``--jobs`` processes;
their answers are kept in ``--folder``, from which a later run continues.

Calls that stay eager are counted with the reason: those whose backend is forced to MATH (the reference
the tests compare with) and nested tensors. Up to ``--limit`` variants of each test function run, evenly
chosen; 0 is all of them (3267 in torch 2.6's file, 3072 of them of one function).

Tests that differ in ``stock`` too are those that script or compile what calls SDPA, or read logs.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention.sdpa_call import Calls
from benchmarks.harness.repository import REPOSITORY, RESULTS
from inductor_plugin.tuning import race
from inductor_plugin.worker.jobs import Sampling

OUT = RESULTS / "sdpa_suite.json"
ARM_S = 3600.0


LOOK = Sampling(warmup=0, samples=1, min_sample_ms=0.0, max_total_s=0.01, cold_cache=False)
"""One run of each candidate: only the numbers matter, and every candidate may win by chance."""


class Recorder(unittest.TestResult):
    """Keeps the outcome of each test."""

    def __init__(self, stream: Any) -> None:
        """Write each outcome to ``stream`` at once, so that a crash does not lose the others."""
        super().__init__()
        self._stream = stream
        self._recorded: set[str] = set()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802  unittest's names
        """Record a test that passed."""
        self._record(test, "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Record a test that raised."""
        self._record(test, "failed", err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Record a test whose assertion failed."""
        self._record(test, "failed", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Record a test that was skipped."""
        self._record(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Record a test that failed as it says."""
        self._record(test, "expected failure", err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Record a test that passed although it says it fails."""
        self._record(test, "unexpected success")

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:  # noqa: ARG002, N802
        """Record a part of a test that failed."""
        if err is not None:
            self._record(test, "failed", err)

    def _record(self, test: unittest.TestCase, outcome: str, why: Any = None) -> None:
        if test.id() in self._recorded:
            return
        self._recorded.add(test.id())
        reason = why if isinstance(why, str) else repr(why[1]) if why else ""
        reason = reason.replace(f"{REPOSITORY}/", "").partition("\\n\\nTo execute this test")[0]
        line = {"test": short(test.id()), "outcome": outcome, "reason": reason[:400]}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def short(test_id: str) -> str:
    """Return class and method of a test's name."""
    return ".".join(test_id.split(".")[-2:])


def loaded(path: Path) -> tuple[Any, dict[str, unittest.TestCase]]:
    """Return the module of a test file, and its tests by class and method."""
    sys.path.insert(0, str(path.parent))
    module = import_module(path.stem)
    tests: dict[str, unittest.TestCase] = {}

    def walk(suite: Iterable[Any]) -> None:
        for item in suite:
            if isinstance(item, unittest.TestSuite):
                walk(item)
            else:
                tests[short(item.id())] = item

    walk(unittest.defaultTestLoader.loadTestsFromModule(module))
    return module, tests


def chosen(names: Iterable[str], functions: Sequence[str], limit: int) -> list[str]:
    """Return up to ``limit`` evenly spaced variants of each test function; 0 is all.

    Args:
        names: Class and method of each test; a method is its function's name and the parameters.
        functions: Names of the functions in the file.
        limit: Number of variants of each.
    """
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        owner, _, method = name.partition(".")
        fitting = [f for f in functions if method == f or method.startswith(f"{f}_")]
        groups[owner, max(fitting, key=len, default=method)].append(name)
    picked: list[str] = []
    for group in groups.values():
        count = len(group)
        step = _step(count, limit or count)
        picked += [group[i * step % count] for i in range(min(limit or count, count))]
    return picked


def _step(count: int, limit: int) -> int:
    """Return the step from one variant to the next, so that variants without time to run are spread.

    It is odd, so that no binary option is always the same, and coprime to the count, so that it visits all.
    """
    step = (count // limit if limit < count else int(count * 0.618)) | 1
    while math.gcd(step, count) != 1:
        step += 2 if count % 2 == 0 else 1
    return step


def functions_of(path: Path) -> list[str]:
    """Return the names of the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sorted({name for name in names if name.startswith("test")})


def _look(_device: str) -> Sampling:
    return LOOK


def run_arm(path: Path, arm: str, listed: Path, answers: Path) -> None:
    """Run the listed tests in this process, with SDPA compiled or not."""
    # Otherwise the threads of several processes spin in OpenMP's loops: 15 s a test, not 1.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the workers
    race.screening, race.MAX_LEGS = _look, 0
    module, tests = loaded(path)
    calls = Calls(arm, answers.with_suffix(".cache"))
    calls.install(module)
    with answers.open("w", encoding="utf-8") as stream:
        recorder = Recorder(stream)
        for name in listed.read_text(encoding="utf-8").split():
            started = time.perf_counter()
            before = calls.counts["compiled"]
            stream.write(json.dumps({"started": name}) + "\n")
            stream.flush()
            tests[name].run(recorder)
            spent = {"ended": name, "seconds": round(time.perf_counter() - started, 2)}
            spent["compiled"] = calls.counts["compiled"] - before
            stream.write(json.dumps(spent) + "\n")
            stream.write(json.dumps({"calls": calls.summary()}) + "\n")


@dataclass
class Fared:
    """The results of the tests of one arm.

    Attributes:
        outcomes: By test: outcome, reason, seconds, compiled calls.
        calls: How often SDPA was compiled, or stayed eager for which reason.
        not_run: Tests for which there was no time.
    """

    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    calls: Counter[str] = field(default_factory=Counter[str])
    not_run: list[str] = field(default_factory=list[str])


def arm(
    path: Path, name: str, tests: Sequence[str], limit_s: float, folder: Path, jobs: int = 1
) -> Fared:
    """Run tests in separate processes; a process that dies is restarted after the test that killed it.

    Args:
        path: The file of tests.
        name: The arm.
        tests: Class and method of each test.
        limit_s: Seconds for all of them.
        folder: Has the answers of each process; tests that are in them do not run again.
        jobs: Number of concurrent processes.
    """
    fared = Fared()
    ends = time.monotonic() + limit_s
    earlier = sorted(folder.glob(f"{name}.*.jsonl"))
    for answers in earlier:
        take(read(answers), fared.outcomes, fared.calls)
    left = [test for test in tests if test not in fared.outcomes]
    # In the listed order, every second test sets a mask and takes ten times as long.
    random.Random(0).shuffle(left)

    def run(job: int) -> Fared:
        return _in_turn(path, name, left[job::jobs], ends, folder, len(earlier) + job)

    with ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(run, range(jobs)):
            fared.outcomes |= part.outcomes
            fared.calls.update(part.calls)
    fared.not_run = [test for test in tests if test not in fared.outcomes]
    return fared


def _in_turn(
    path: Path, name: str, tests: Sequence[str], ends: float, folder: Path, number: int
) -> Fared:
    """Run tests one after the other until the time is over, in a new process after each crash."""
    fared, died_of = Fared(), 0
    left: list[str] = [*tests]
    while left and time.monotonic() < ends:
        place = folder / f"{name}.{number}.{died_of}"
        listed, answers = Path(f"{place}.tests"), Path(f"{place}.jsonl")
        listed.write_text("\n".join(left), encoding="utf-8")
        answers.write_text("", encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "benchmarks.attention.sdpa_suite",
            str(path),
            "--arm",
            name,
        ]
        command += ["--tests", str(listed), "--answers", str(answers)]
        died = ended(command, max(ends - time.monotonic(), 1.0))
        started = take(read(answers), fared.outcomes, fared.calls)
        if died and started and started not in fared.outcomes:
            fared.outcomes[started] = {"outcome": "crashed", "reason": died}
        left = [test for test in left if test not in fared.outcomes]
        died_of += 1
        if not died or started is None:
            break
    return fared


def ended(command: Sequence[str], limit_s: float) -> str:
    """Run a process; return how it died, empty if it exited normally or its time was over."""
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, check=False, timeout=limit_s, stdout=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return ""
    return f"the process ended with {done.returncode}" if done.returncode else ""


def read(answers: Path) -> list[dict[str, Any]]:
    """Return the complete lines that a process has written."""
    text = answers.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def take(
    lines: Iterable[dict[str, Any]], outcomes: dict[str, dict[str, Any]], calls: Counter[str]
) -> str | None:
    """Add a process's lines to the outcomes and calls; return the last test it started."""
    started = None
    counted: dict[str, int] = {}
    for line in lines:
        if "started" in line:
            started = str(line["started"])
        elif "ended" in line and line["ended"] in outcomes:
            outcomes[line["ended"]] |= {"seconds": line["seconds"], "compiled": line["compiled"]}
        elif "test" in line:
            outcomes[line["test"]] = {"outcome": line["outcome"], "reason": line["reason"]}
        elif "calls" in line:
            counted = line["calls"]  # cumulative
    calls.update(counted)
    return started


def compared(plain: Fared, plugin: Fared) -> tuple[Counter[str], list[str]]:
    """Return the number of tests by equal outcome, and the tests whose outcomes differ."""
    same: Counter[str] = Counter()
    differing: list[str] = []
    for name, answer in plugin.outcomes.items():
        before = plain.outcomes.get(name, {"outcome": "not run"})["outcome"]
        if answer["outcome"] == before:
            same[before] += 1
        else:
            differing.append(name)
    return same, differing


def main(argv: Sequence[str] | None = None) -> int:
    """Compare both, write the file, and return 1 if a test differs because of the plugin."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention.sdpa_suite")
    parser.add_argument("path", type=Path)
    parser.add_argument("--limit", type=int, default=8, help="variants of each test; 0 for all")
    parser.add_argument("--only", default="", help="only tests whose name contains this")
    parser.add_argument("--limit-s", type=float, default=ARM_S, help="seconds one arm may take")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--folder", type=Path, help="keeps the answers; a later run goes on there")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--arm", choices=("plain", "stock", "plugin"), help=argparse.SUPPRESS)
    parser.add_argument("--tests", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    path = options.path.resolve()
    if options.arm:
        run_arm(path, options.arm, options.tests, options.answers)
        return 0
    _, tests = loaded(path)
    names = [name for name in tests if options.only in name and "PrivateUse1" not in name]
    picked = chosen(names, functions_of(path), options.limit)
    print(f"{len(picked)} of {len(names)} tests")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        plugin, plain = (
            arm(path, name, picked, options.limit_s, folder, options.jobs)
            for name in ("plugin", "plain")
        )
        same, differing = compared(plain, plugin)
        stock = arm(path, "stock", differing, options.limit_s, folder) if differing else Fared()
    rows = [_row(name, plain, plugin, stock) for name in differing]
    ours = [row for row in rows if row["plugin"] != row["stock"]]
    report = {
        "torch": str(torch.__version__),
        "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "tests": {"in the file": len(names), "chosen": len(picked)},
        "not_run": plugin.not_run,
        "same": dict(sorted(same.items())),
        "compiled": sum(bool(answer.get("compiled")) for answer in plugin.outcomes.values()),
        "calls": dict(sorted(plugin.calls.items())),
        "differing": rows,
        "differing_because_of_the_plugin": [row["test"] for row in ours],
        "failing_in_both": [
            {"test": name, "reason": answer["reason"]}
            for name, answer in plugin.outcomes.items()
            if answer["outcome"] in ("failed", "crashed") and name not in differing
        ],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in report.items() if k != "failing_in_both"}, indent=1))
    return 1 if ours else 0


def _row(name: str, *arms: Fared) -> dict[str, str]:
    row = {"test": name}
    for arm_name, fared in zip(("plain", "plugin", "stock"), arms, strict=True):
        answer = fared.outcomes.get(name, {"outcome": "not run", "reason": ""})
        row[arm_name] = answer["outcome"]
        if answer["reason"]:
            row[f"{arm_name}_reason"] = answer["reason"]
    return row


if __name__ == "__main__":
    sys.exit(main())
