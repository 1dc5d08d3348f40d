"""The pytest options of `make test`, `make test-slow` and `make durations`.

    --tier fast         what `tests.support.tiers.selection` chooses, as `make test` does; a line at the end says what
                        was left out. It chooses nothing where -m or -k is given, or a file or folder: those run
                        as they are named, whatever their duration, and so do cases marked slow.
    --tier rest         the others, less those outside the named files
    --part-s SECONDS    of the rest, a part that takes about so long: what concerns files changed since
                        --part-since COMMIT first, then cases drawn by the commit that is checked out
    --write-durations   renews tests/durations.json after the run: the figures of the functions that ran; all, and
                        the seconds of a function, if all ran (or all but the slow ones: -m "not slow")

Without a tier all tests run. Node ids on the command line run in each tier. With `-n auto` they run in this
process, all else in one worker for each core; a test marked `alone` runs while the other workers wait
(`tests.support.tiers.turns`). The tests that need a GPU are not imported in a tier unless there
is one; `make test-all` imports them.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import REQUIRED, browser_path
from tests.support.repository import REPOSITORY
from tests.support.tiers import selection
from tests.support.tiers.selection import Case, Durations
from tests.support.tiers.turns import Turns

DURATIONS = REPOSITORY / "tests" / "durations.json"
_MOST_WORKERS = 8  # a worker and its children take about 2 GB
_IN_BROWSER = "tests/tuning/report/page/browser/"


def add_options(parser: pytest.Parser) -> None:
    """Add the options that the docstring of this file describes."""
    group = parser.getgroup("tiers", "choice of tests by duration")
    group.addoption("--tier", choices=("fast", "rest"), help="run a part of the tests")
    group.addoption("--part-s", type=float, help="of --tier rest, run about so many seconds")
    group.addoption("--part-since", default="", help="prefer what changed since this commit")
    group.addoption("--write-durations", action="store_true", help="write tests/durations.json")


def configure(config: pytest.Config) -> None:
    """Register what the options ask for, before any worker starts."""
    worker = getattr(config, "workerinput", None)
    if (
        worker is not None
    ):  # it parses the command line again: what was decided comes with its input
        config.option.tier, config.option.drawn_from = worker["tier"], worker["drawn_from"]
        turns = Turns(Path(worker["turns"]))
        config.pluginmanager.register(_InTurns(turns), "inductor-plugin-turns")
    else:
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        filtered = bool(config.option.markexpr or config.option.keyword)
        by_id = named and any("::" in argument for argument in config.args)
        if by_id or (config.option.tier == "fast" and (named or filtered)):
            config.option.tier = None
        config.option.drawn_from = ("", [])
        if config.option.part_s is not None:
            config.option.drawn_from = _changes(config.option.part_since)
        config.pluginmanager.register(_Inputs(config), "inductor-plugin-inputs")
        config.pluginmanager.register(_Skips(), "inductor-plugin-skips")
        if config.option.write_durations:
            whole = runs_all_quick_tests(config.option, named=named)
            old = None if whole and not config.option.markexpr else selection.read(DURATIONS)
            recorder = _Recorder(old, complete=whole)
            config.pluginmanager.register(recorder, "inductor-plugin-durations")
    if config.option.tier:
        config.pluginmanager.register(_Tier(config), "inductor-plugin-tier")


def runs_all_quick_tests(option: Any, *, named: bool) -> bool:
    """Return True if every test that is not slow runs under these options; ``named`` says that files or folders are named."""
    return not (named or option.keyword or option.tier) and option.markexpr in ("", "not slow")


def runnable(cases: list[Case]) -> list[Case]:
    """Return the cases that a part is drawn from: without a browser those that need one would be skipped, in place of others."""
    if browser_path() or os.environ.get(REQUIRED):
        return cases
    return [case for case in cases if not case.file.startswith(_IN_BROWSER)]


def workers(config: pytest.Config) -> int:
    """Return the number of workers of `-n auto`."""
    if any("::" in argument for argument in config.args):
        return 0
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


def _changes(commit: str) -> tuple[str, list[str]]:
    """Return the commit that is checked out, and the files changed since another; empty without a history.

    In place of changed helpers of tests it has the files that import them.
    """
    head = _git("rev-parse", "HEAD").strip()
    changed = _git("diff", "--name-only", commit).splitlines() if commit else []
    modules = (REPOSITORY / "tests").rglob("*.py") if changed else ()
    texts = {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in modules
    }
    return head, selection.with_importers(changed, texts)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else ""


class _Tier:
    """Deselects cases that do not belong to the tier, and reports them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._durations = selection.read(DURATIONS)
        self._summary: dict[str, Any] = {}
        self._without_gpu = False

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the tests that need a GPU where there is none."""
        if collection_path.parent != REPOSITORY / "tests" / "gpu":
            return None
        if not collection_path.name.startswith("test_"):
            return None
        import torch  # heavy, and only a process that collects needs it

        self._without_gpu = not torch.cuda.is_available()
        return True if self._without_gpu else None

    @pytest.hookimpl(tryfirst=True)  # before -m and -k take cases away
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the other cases."""
        by_id = {item.nodeid: item for item in items}
        cases = [
            Case(
                item.nodeid,
                item.get_closest_marker("slow") is not None,
                item.get_closest_marker("claim") is not None,
            )
            for item in by_id.values()
        ]
        chosen = selection.select(self._durations, cases)
        left_out = [case for case in cases if case.node_id in chosen.left_out]
        kept = list(chosen.kept)
        if self._config.option.tier == "rest":
            kept, left_out = left_out, kept
            if self._config.option.part_s is not None:
                head, changed = self._config.option.drawn_from
                limit_s = self._config.option.part_s
                drawn = selection.part(
                    self._durations, runnable(kept), limit_s=limit_s, seed=head, changed=changed
                )
                left_out += [case for case in kept if case not in set(drawn)]
                kept = list(drawn)
        self._config.hook.pytest_deselected(items=[by_id[case.node_id] for case in left_out])
        items[:] = [by_id[case.node_id] for case in kept]
        self._summary = _summary(self._durations, kept, left_out, chosen.left_out)
        if self._without_gpu:
            self._summary["lines"].append(
                "tests/gpu: not collected without a GPU; `make test-gpu`."
            )
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["tier"] = self._summary  # pyright: ignore

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the cases that a worker left out; all workers leave out the same."""
        self._summary = getattr(node, "workeroutput", {}).get("tier", self._summary)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Report what was left out and how to run it."""
        if not self._summary:
            return
        terminalreporter.section("left out")
        for line in self._summary["lines"]:
            terminalreporter.write_line(line)
        command = "make test-slow" if self._config.option.tier == "fast" else "make test"
        terminalreporter.write_line(
            f"`make test-all` runs everything that needs no GPU, `{command}` what was left out here."
            if self._config.option.part_s is None
            else "`make test-all` runs everything that needs no GPU."
        )


def _summary(
    durations: Durations, kept: list[Case], left_out: list[Case], reasons: Any
) -> dict[str, Any]:
    """Return lines about what was left out; the argument is plain because a worker sends it."""
    cases: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in left_out:
        reason = reasons.get(case.node_id, "in `make test`")
        cases[reason] += 1
        seconds[reason] += durations.seconds(case)
    functions = {case.function for case in left_out} - {case.function for case in kept}
    lines = [f"{cases[each]:5d} cases, {seconds[each]:5.0f} s: {each}" for each in sorted(cases)]
    total_s = sum(seconds.values())
    lines.append(
        f"{len(left_out):5d} cases in all, {total_s:.0f} s by tests/durations.json, "
        f"among them all cases of {len(functions)} functions; {len(kept)} cases ran."
    )
    return {"lines": lines}


class _Inputs:
    """Hands what the options mean to each worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._option = config.option
        self._turns = tempfile.TemporaryDirectory(prefix="inductor-plugin-turns-")
        config.add_cleanup(self._turns.cleanup)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Add the tier, what its part is drawn from, and the folder of the workers' turns."""
        node.workerinput["tier"] = self._option.tier
        node.workerinput["drawn_from"] = self._option.drawn_from
        node.workerinput["turns"] = self._turns.name


class _InTurns:
    """Lets a worker wait for its turn before each test."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # the time limit of a test begins behind it
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run a test in its turn."""
        with self._turns.turn(alone=item.get_closest_marker("alone") is not None):
            return (yield)


class _Skips:
    """Prints one line for each reason to skip; pytest prints one for each line of a test file."""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Count the skipped cases."""
        skipped: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
        reasons = Counter(
            report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            for report in skipped
        )
        for reason, cases in reasons.most_common():
            terminalreporter.write_line(f"{cases:5d} skipped: {reason.removeprefix('Skipped: ')}")


class _Recorder:
    """Writes the seconds of the cases that ran."""

    def __init__(self, old: Durations | None, *, complete: bool) -> None:
        self._old = old or Durations(0.0, 0.0, {})
        self._complete = complete
        self._seconds: defaultdict[Case, float] = defaultdict(float)
        self._skipped: set[Case] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the parts of a case: before, in and after the test."""
        case = Case(report.nodeid, "slow" in report.keywords, "claim" in report.keywords)
        self._seconds[case] += report.duration
        if report.skipped:
            self._skipped.add(case)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the file, and name the tests that should be marked slow."""
        ran = {case: each for case, each in self._seconds.items() if case not in self._skipped}
        selection.write(DURATIONS, selection.renewed(self._old, ran, complete=self._complete))
        for case, seconds in ran.items():
            if seconds > selection.LONGEST_S and not case.slow:
                terminalreporter.write_line(f"{case.node_id} took {seconds:.0f} s: mark it slow")
