"""What a run of the GPU tests keeps: a JSON file after every test, a table at the end, a way to resume.

    pytest tests/gpu --resume       leaves out what has passed on this GPU with these sources
    pytest tests/gpu --fresh        forgets earlier runs
    pytest tests/gpu -k TEXT        runs the selected tests, and keeps the rows of the others

`make test-gpu` runs them in the steps of `tests.gpu.session`, each with a limit.

Kernels go to ``INDUCTOR_PLUGIN_CACHE_DIR`` where it is set, so that those compiled on another machine
are found; otherwise pytest's cache keeps them from one run to the next.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin
from tests.gpu.harness.order import rank
from tests.gpu.harness.results import Results, machine

# Registers the name in a checkout, where it is not installed.
importlib.import_module("inductor_plugin.backend")

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "test_gpu.json"
_CARRIED = os.environ.get("INDUCTOR_PLUGIN_CACHE_DIR", "")  # the fixtures below take it away

_run = pytest.StashKey[Results]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--resume``, ``--fresh`` and ``--gpu-results``."""
    parser.addoption(
        "--resume", action="store_true", help="leave out GPU tests that have passed before"
    )
    parser.addoption(
        "--fresh", action="store_true", help="forget earlier runs of the GPU tests, --resume or not"
    )
    parser.addoption(
        "--gpu-results", type=Path, default=RESULTS, help="file of the GPU tests' outcomes"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what has passed, if asked to; the most telling tests first (`tests.gpu.harness.order`)."""
    here = Path(__file__).parent
    # The device first: without it, asking 15,000 tests for their folders takes 1 s.
    mine = (
        [item for item in items if here in item.path.parents] if torch.cuda.is_available() else []
    )
    if not mine:
        return
    path = Path(config.getoption("--gpu-results", default=None) or RESULTS)
    resumed, fresh = (
        bool(config.getoption(name, default=False)) for name in ("--resume", "--fresh")
    )
    # A file of one's own that is not there yet goes on from the committed one.
    before = () if fresh else (path, RESULTS)
    results = Results(path, machine(), before, resumed=resumed)
    config.stash[_run] = results
    config.pluginmanager.register(_Reporter(results), "inductor-plugin-gpu-results")
    for record in mine:
        if results.passed(record.name):
            record.add_marker(
                pytest.mark.skip(reason="passed before, on this GPU with these sources")
            )
    ordered = iter(sorted(mine, key=lambda item: rank(item.nodeid, results.ended)))
    items[:] = [next(ordered) if here in item.path.parents else item for item in items]


class _Reporter:
    """Writes the file before and after each test."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test begins, before any of its fixtures does."""
        if "tests/gpu/" in nodeid:
            self._results.begin(nodeid.rpartition("::")[2])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test went."""
        # What fails behind a test fails the test: the device may be broken.
        ended = report.when == "call" or report.outcome != "passed"
        if ended and "tests/gpu/" in report.nodeid:
            name = report.nodeid.rpartition("::")[2]
            reason = "" if report.passed else str(report.longrepr)[-600:]
            notes = dict(report.user_properties)
            self._results.add(name, report.outcome, report.duration, reason, notes)


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile everything anew; the first kernel of a process fixes Triton's folder otherwise."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(inductor_cache / "triton" / "0"))
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()
    if torch.cuda.is_available():  # the harness is tested without a GPU
        torch.cuda.synchronize()  # a test that breaks the device fails itself, not the next one


@pytest.fixture(scope="session")
def kernels_dir(pytestconfig: pytest.Config) -> Path:
    """Return the cache directory of the kernels that are built for the GPU cases."""
    if _CARRIED:
        return Path(_CARRIED)
    cache = pytestconfig.cache
    assert cache is not None
    return cache.mkdir("gpu-kernels")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table."""
    results = config.stash.get(_run, None)
    if results is None:
        return
    if not (results.ran or results.rejection):
        return
    terminalreporter.section("GPU tests")
    if results.rejection:
        terminalreporter.write_line(results.rejection)
    for line in results.table():
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"Written to {results.path}.")
