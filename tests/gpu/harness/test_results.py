"""A run of the GPU tests without a GPU: what it keeps, what it leaves out, how long it waits."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.worker.jobs import JobFailed
from tests.gpu import test_candidates
from tests.gpu.cases import builds, kernels, offers
from tests.gpu.cases.kernels import Kernels
from tests.gpu.forced import start as forced_start
from tests.gpu.harness import results
from tests.gpu.harness.results import Results
from tests.support.repository import REPOSITORY

pytest_plugins = ["pytester"]

FACTS = {"gpu": "H200", "sources": "abc", "torch": "2.11", "triton": "3.6"}


def rows(path: Path) -> dict[str, str]:
    return {row["test"]: row["outcome"] for row in json.loads(path.read_text())["tests"]}


def test_a_run_is_resumed_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results" / "test_gpu.json"
    first = Results(path, FACTS)
    first.add("one", "passed", 1.0, "", {"error": 0.1})
    assert rows(path) == {"one": "passed"}
    first.add("two", "failed", 2.0, "why", {})
    again = Results(path, FACTS, [path], resumed=True)
    assert [again.passed(name) for name in ("one", "two", "three")] == [True, False, False]
    again.begin("one")
    again.add("one", "skipped", 0.0, "passed before", {})
    again.begin("two")
    again.add("two", "passed", 2.0, "", {})
    elsewhere = Results(tmp_path / "new.json", FACTS, [tmp_path / "new.json", path], resumed=True)
    assert elsewhere.passed("one")
    assert rows(path) == {"one": "passed", "two": "passed"}
    assert json.loads(path.read_text())["tests"][0]["error"] == 0.1
    assert "2 passed; 1 of them from before" in again.table()[-1]


def test_a_run_that_is_not_resumed_keeps_the_rows_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "test_gpu.json"
    first = Results(path, FACTS)
    for name, outcome in (("one", "passed"), ("two", "failed"), ("three", "passed")):
        first.add(name, outcome, 1.0, "", {})
    again = Results(path, FACTS, [path])
    assert not again.passed("one")
    again.add("one", "failed", 1.0, "", {})
    assert rows(path) == {"one": "failed", "two": "failed", "three": "passed"}


def test_a_row_without_an_outcome_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "test_gpu.json"
    good = {"test": "one", "outcome": "passed", "seconds": 1.0}
    path.write_text(json.dumps({**FACTS, "tests": [3, {"test": "two"}, good]}), encoding="utf-8")
    again = Results(path, FACTS, [path], resumed=True)
    assert [again.passed(name) for name in ("one", "two")] == [True, False]
    assert len(again.table()) == 2


def test_a_test_that_ends_the_run_is_named_and_run_again(tmp_path: Path) -> None:
    path = tmp_path / "test_gpu.json"
    Results(path, FACTS).begin("one")
    assert rows(path) == {"one": "begun"}
    assert not Results(path, FACTS, [path], resumed=True).passed("one")


def test_what_passed_with_other_sources_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "test_gpu.json"
    Results(path, FACTS).add("one", "passed", 1.0, "", {})
    assert Results(path, FACTS, [path], resumed=True).passed("one")
    other = Results(path, FACTS | {"sources": "another"}, [path], resumed=True)
    assert not other.passed("one")
    assert "another sources" in other.rejection
    assert not Results(path, FACTS, resumed=True).passed("one")


def test_the_sources_of_the_gpu_tests_are_there() -> None:
    assert "tests/gpu" in results.SOURCES
    assert all((REPOSITORY / source).is_dir() for source in results.SOURCES)


TESTS = """
import os
import pytest

@pytest.fixture
def inductor_cache(tmp_path):
    return tmp_path

@pytest.fixture(scope="session")
def slow():
    with open(os.environ["RESULTS"]) as file:  # there before the first fixture begins
        assert '"begun"' in file.read()

def ran(name):
    with open(os.environ["SEEN"], "a") as file:
        file.write(name + " ")

def test_good(slow):
    ran("good")

def test_bad(slow):
    ran("bad")
    assert os.environ.get("MENDED")

@pytest.fixture
def breaks_later():
    yield
    assert os.environ.get("MENDED")

def test_later(breaks_later):
    ran("later")
"""


@pytest.fixture
def gpu_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[str], dict[str, str], str]]:
    """Return what runs the tests above under the GPU tests' conftest, as on a machine with a GPU."""
    here = pytester.path / "tests" / "gpu"
    here.mkdir(parents=True)
    shutil.copy(REPOSITORY / "tests" / "gpu" / "conftest.py", here)
    (here / "test_some_gpu.py").write_text(TESTS)
    path = pytester.path / "benchmarks" / "results" / "test_gpu.json"
    seen = pytester.path / "seen.txt"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(results, "machine", lambda: FACTS)
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("RESULTS", str(path))

    def run(*arguments: str) -> tuple[list[str], dict[str, str], str]:
        seen.write_text("")
        done = pytester.runpytest_inprocess("tests/gpu", "-p", "no:cacheprovider", *arguments)
        return seen.read_text().split(), rows(path), done.stdout.str()

    return run


def test_resuming_leaves_out_what_has_passed(gpu_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, kept, shown = gpu_run("--resume")
    assert ran == ["good", "bad", "later"]
    assert kept == {"test_good": "passed", "test_bad": "failed", "test_later": "failed"}
    assert "1 passed" in shown
    assert gpu_run("--resume")[0] == ["bad", "later"]
    monkeypatch.setenv("MENDED", "1")
    ran, kept, shown = gpu_run("--resume")
    assert ran == ["bad", "later"]
    assert set(kept.values()) == {"passed"}
    assert "3 passed; 1 of them from before" in shown
    assert gpu_run("--resume")[0] == []
    ran, kept, _ = gpu_run("-k", "later")  # not resumed: runs what it is told to
    assert ran == ["later"]
    assert len(kept) == 3


def test_a_fresh_run_forgets_what_has_passed(gpu_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDED", "1")
    gpu_run("--resume")
    ran, kept, _ = gpu_run("--resume", "--fresh", "-k", "good")
    assert ran == ["good"]
    assert kept == {"test_good": "passed"}


def test_a_test_that_ended_a_run_is_the_last_of_the_next(gpu_run: Any, tmp_path: Path) -> None:
    gpu_run()
    path = Path(os.environ["RESULTS"])
    content = json.loads(path.read_text())
    for row in content["tests"]:
        row["outcome"] = "begun" if row["test"] == "test_good" else row["outcome"]
    path.write_text(json.dumps(content))
    assert gpu_run("--resume")[0] == ["bad", "later", "good"]


def test_slices_are_built_in_the_tests_order() -> None:
    asked: list[list[str]] = []

    def build(some: Sequence[str]) -> dict[str, list[offers.Offered] | str]:
        asked.append(list(some))
        return {name: f"why not {name}" for name in some}

    pool = Kernels(["a", "b", "c", "d", "e"], build, 2)
    assert [pool.of(name) for name in "ea"] == ["why not e", "why not a"]
    assert asked == [["a", "b"], ["c", "d"], ["e"]]


def test_a_test_waits_for_its_own_slice_and_not_for_long() -> None:
    gate = threading.Event()

    def build(some: Sequence[str]) -> dict[str, list[offers.Offered] | str]:
        if some != ["a"]:
            gate.wait(60)
        return dict.fromkeys(some, "ready")

    pool = Kernels(["a", "b", "c"], build, 1)
    try:
        assert pool.of("a", 30) == "ready"
        started = time.monotonic()
        assert "still being built after 0 s" in pool.of("b", 0.05)
        assert time.monotonic() - started < 4
        gate.set()
        assert pool.of("b", 30) == "ready"
    finally:
        gate.set()
        pool.close()


def test_no_more_slices_are_begun_after_the_end() -> None:
    gate, begun = threading.Event(), list[str]()

    def build(some: Sequence[str]) -> dict[str, list[offers.Offered] | str]:
        begun.extend(some)
        gate.wait(60)
        return dict.fromkeys(some, "ready")

    pool = Kernels(["a", "b"], build, 1)
    try:
        started = time.monotonic()
        pool.close()
        assert time.monotonic() - started < 10
    finally:
        gate.set()
    assert pool.of("a", 30) == "ready"
    assert begun == ["a"]


def test_a_build_that_does_not_end_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Stuck:
        def __init__(self, *facts: Any) -> None: ...
        def add(self, *facts: Any) -> None: ...
        def flush(self) -> None: ...

    monkeypatch.setattr(builds, "Builder", Stuck)
    some = [
        offers.Offered("a case", f"{number}", "name", "about", None, None)  # type: ignore[arg-type]
        for number in range(5)
    ]
    started = time.monotonic()
    result = offers.built(some, tmp_path, 1, 0.5)
    assert time.monotonic() - started < 1.5
    assert set(result.values()) == {"not built in time"}


class Worker:
    """Takes its time on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.limits: list[float] = []

    def attempt(self, job: object, timeout_s: float) -> Any:
        self.limits.append(timeout_s)
        self.now_s += timeout_s
        return JobFailed("hung", "hung", "")

    def stop(self) -> None: ...


def test_candidates_that_hang_do_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    monkeypatch.setattr(kernels.time, "monotonic", lambda: worker.now_s)
    offered = offers.Offered("a case", "id", "name", "about", None, None)  # type: ignore[arg-type]

    class Ready:
        def of(self, identity: str) -> list[offers.Offered]:
            worker.now_s += kernels.WAIT_S
            return [offered] * 14

    notes: dict[str, Any] = {}
    operands: Any = (Ready(), worker, notes.__setitem__)
    with pytest.raises(AssertionError, match="not run, 200 s are over"):
        test_candidates.test_every_candidate_is_right("a case", *operands)
    assert worker.now_s <= kernels.TEST_S
    assert len(worker.limits) == 2
    assert len(notes["candidates"]) == 2


def test_no_test_may_take_as_long_as_ends_the_run(pytestconfig: pytest.Config) -> None:
    ends_s = float(pytestconfig.getini("faulthandler_timeout"))
    assert kernels.WAIT_S < kernels.TEST_S <= ends_s - 30
    assert forced_start.LIMIT_S < kernels.TEST_S


def test_a_process_that_hangs_is_reported(tmp_path: Path) -> None:
    module = "tests.gpu.forced.product"
    report = forced_start.run(module, "dry_twin", tmp_path, tmp_path, limit_s=0.2)
    assert report == {"failed": "not ready after 0 s"}
