"""Runs one of PyTorch's test files in one arm, to its end whatever its tests do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.pytorch.journal import Result, crashed, results_in
from benchmarks.pytorch.recorder import JOURNAL

LIMIT_S = 240
"""Seconds after which the process of a test is ended."""


def collected(file: str, chosen: str, folder: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the ids of a file's tests.

    Raises:
        ValueError: The file cannot be imported, or does not exist.
    """
    done = _pytest(["--collect-only", "-q", "-k", chosen, file], folder, variables)
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    if done.returncode not in (0, 5):
        raise ValueError(f"{folder / file} cannot be collected:\n{done.stdout[-1500:]}")
    return tests


def run(
    tests: Sequence[str], folder: Path, variables: Mapping[str, str], journal: Path
) -> dict[str, Result]:
    """Run tests that have no result yet; a test that ends its process has crashed, and the others go on.

    Args:
        tests: Their ids.
        folder: PyTorch's folder ``test/inductor``.
        variables: The environment.
        journal: Where results are written, and those of earlier runs are.

    Returns:
        The results by test.
    """
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.touch()
    while True:
        results, _ = results_in(journal.read_text(encoding="utf-8").splitlines())
        left = [test for test in tests if test not in results]
        if not left:
            return {test: results[test] for test in tests}
        done = _pytest(left, folder, {**variables, JOURNAL: str(journal)})
        after, running = results_in(journal.read_text(encoding="utf-8").splitlines())
        silent = len(after) == len(results)
        if running or silent:  # a test that does not even start must not be tried for ever
            reason = f"exit status {done.returncode}: {done.stdout[-1500:]}"
            with journal.open("a", encoding="utf-8") as file:
                file.write(crashed(running or left[0], reason))


def known(tests: Iterable[str], journals: Iterable[Path]) -> dict[str, Result]:
    """Return the results of tests in the journals of all shards."""
    results: dict[str, Result] = {}
    for journal in sorted(journals):
        results |= results_in(journal.read_text(encoding="utf-8").splitlines())[0]
    return {test: results[test] for test in tests if test in results}


def _pytest(
    arguments: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    own = ["-p", "benchmarks.pytorch.missing_names", "-p", "benchmarks.pytorch.replacements"]
    own += ["-p", "benchmarks.pytorch.recorder"] if JOURNAL in variables else []
    quiet = ["--noconftest", "-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    limit = ["-o", f"faulthandler_timeout={LIMIT_S}", "-o", "faulthandler_exit_on_timeout=true"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *own, *quiet, *limit, "-W", "ignore", *arguments],
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
