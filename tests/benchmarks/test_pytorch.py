"""A test file of two arms, one of whose tests ends its process: what each arm reports, and where they differ."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.pytorch import __main__ as command
from benchmarks.pytorch.arm import collected, run
from benchmarks.pytorch.differences import Difference, counts, differences
from benchmarks.pytorch.journal import Result, crashed, results_in
from benchmarks.pytorch.suite import PLUGIN, REPOSITORY, STOCK, SUITES, Suite, environment

FILE = """
import os, unittest
from torch_of_another_version import a_name_that_went

class Both(unittest.TestCase):
    def test_passes(self): pass
    @a_name_that_went
    def test_passes_without_the_plugin(self): self.assertNotIn("INDUCTOR_PLUGIN_ENABLE", os.environ)
    @unittest.skipIf(a_name_that_went, "")
    def test_ends_its_process(self): os._exit(3)
    def test_product_after_it(self): pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor" / "test_both.py").write_text(FILE)
    (tmp_path / "inductor" / "torch_of_another_version.py").touch()
    return tmp_path / "inductor"


def variables(arm: str, folder: Path) -> Mapping[str, str]:
    return environment(arm, SUITES[0], folder / "caches", folder.parent)


def test_both_arms_run_every_test(folder: Path) -> None:
    tests = collected("test_both.py", "passes or ends or after", folder, variables(STOCK, folder))
    assert len(tests) == 4
    results = {
        arm: run(tests, folder, variables(arm, folder), folder / f"{arm}.jsonl")
        for arm in (STOCK, PLUGIN)
    }
    outcomes = {
        test.partition("::test_")[2]: result.outcome for test, result in results[STOCK].items()
    }
    assert outcomes == {
        "passes": "passed",
        "passes_without_the_plugin": "passed",
        "ends_its_process": "crashed",
        "product_after_it": "passed",
    }
    (different,) = differences(results[STOCK], results[PLUGIN], {})
    assert different.test.endswith("test_passes_without_the_plugin")
    assert different.is_fault
    before = (folder / f"{STOCK}.jsonl").read_text()
    assert run(tests, folder, variables(STOCK, folder), folder / f"{STOCK}.jsonl") == results[STOCK]
    assert (folder / f"{STOCK}.jsonl").read_text() == before


def test_the_command_reports_a_fault_and_goes_on_where_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SUITES", (Suite("test_both.py"), Suite("test_not_there.py")))
    checkout, out = tmp_path / "pytorch", tmp_path / "out.json"
    (checkout / "test").mkdir(parents=True)
    folder.rename(checkout / "test" / "inductor")
    arguments = [str(checkout), "--work", str(tmp_path / "work"), "--out", str(out)]
    arguments += ["--files", "test_both", "test_not_there"]
    assert command.main(arguments) == 1
    report = json.loads(out.read_text())
    (difference,) = report["differences"]
    assert difference["test"].endswith("test_passes_without_the_plugin")
    assert (difference["stock"], difference["plugin"]) == ("passed", "failed")
    assert difference["fault"]
    assert report["files"]["test_both"]["in_both"] == 4
    assert report["files"].keys() == {"test_both"}
    journal = tmp_path / "work" / STOCK / "test_both.jsonl"
    before = journal.read_text()
    assert command.main([*arguments, "--shard", "1/2"]) in (0, 1)
    assert journal.read_text() == before


@pytest.mark.parametrize("shard", ["0/2", "3/2", "half"])
def test_a_shard_that_is_none_is_refused(
    tmp_path: Path, shard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "--shard", shard])
    assert f"{shard} is no I/N" in capsys.readouterr().err


def test_a_file_that_cannot_be_imported_is_named(folder: Path) -> None:
    (folder / "test_broken.py").write_text("import no_such_module")
    with pytest.raises(ValueError, match=r"test_broken\.py cannot be collected"):
        collected("test_broken.py", "", folder, variables(STOCK, folder))


def test_the_arms_have_their_own_caches_and_no_options_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_POLICY", "cached")
    stock, plugin = (environment(arm, SUITES[0], tmp_path, tmp_path) for arm in (STOCK, PLUGIN))
    assert stock["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert not [name for name in stock if name.startswith("INDUCTOR_PLUGIN")]
    assert plugin["INDUCTOR_PLUGIN_ENABLE"] == "1"
    assert plugin["INDUCTOR_PLUGIN_GEMM_BACKENDS"] == "CPP"
    assert "INDUCTOR_PLUGIN_POLICY" not in plugin
    assert stock["TORCHINDUCTOR_CACHE_DIR"] != plugin["TORCHINDUCTOR_CACHE_DIR"]
    assert str(REPOSITORY) in plugin["PYTHONPATH"].split(os.pathsep)


def test_the_journal_keeps_the_first_failure_and_names_what_was_running() -> None:
    lines = [
        '{"test": "a"}',
        '{"test": "a", "outcome": "passed", "seconds": 1.0, "message": ""}',
        '{"test": "a", "outcome": "failed", "seconds": 0.0, "message": "tear-down"}',
        '{"test": "b"}',
        '{"test": "b", "outco',
    ]
    results, running = results_in(lines)
    assert results == {"a": Result("failed", 0.0, "tear-down")}
    assert running == "b"
    results, running = results_in([*lines, crashed("b", "exit status 3")])
    assert (results["b"].outcome, running) == ("crashed", "")


def test_only_what_passed_before_and_has_no_other_reason_is_a_fault() -> None:
    stock = {"same": Result("failed"), "worse": Result("passed"), "better": Result("failed")}
    plugin = {"same": Result("failed"), "worse": Result("failed"), "better": Result("passed")}
    results = differences(stock | {"only stock": Result("passed")}, plugin, {})
    assert [(each.test, each.is_fault) for each in results] == [("worse", True), ("better", False)]
    assert not Difference("worse", stock["worse"], plugin["worse"], "an internal").is_fault
    assert counts(stock, plugin)["in_both"] == 3
    assert counts(stock, plugin)["same"] == 1
