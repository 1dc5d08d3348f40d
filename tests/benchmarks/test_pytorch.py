"""A test file of two arms, one of whose tests ends its process: what each arm reports, and where they differ."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FunctionType
from unittest import mock

import pytest

from benchmarks.pytorch import __main__ as command
from benchmarks.pytorch.arm import collected, known, run
from benchmarks.pytorch.cpu_copy import cpu_copy
from benchmarks.pytorch.differences import Difference, counts, differences
from benchmarks.pytorch.journal import Result, crashed, results_in
from benchmarks.pytorch.place import Place, digest, place_in
from benchmarks.pytorch.replacements import fitting
from benchmarks.pytorch.suite import PLUGIN, REPOSITORY, STOCK, SUITES, Suite, environment

FILE = """
import os, unittest
from unittest import mock
from torch_of_another_version import a_name_that_went

class Selector:
    def lookup(self, key, since=None): raise NotImplementedError
def lookup(self, key): return key + 1

class Both(unittest.TestCase):
    @mock.patch.object(Selector, "lookup", lookup)
    def test_passes(self): self.assertEqual(Selector().lookup(1, since=2), 2)
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


@pytest.fixture
def checkout(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    suites = (Suite("test_both.py"), Suite("test_renamed.py"), Suite("test_broken.py"))
    monkeypatch.setattr(command, "SUITES", suites)
    (tmp_path / "pytorch" / "test").mkdir(parents=True)
    folder.rename(tmp_path / "pytorch" / "test" / "inductor")
    return tmp_path / "pytorch"


def test_the_command_reports_a_difference_and_goes_on_where_it_was(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results" / "out.json"
    arguments = [str(checkout), "--work", str(tmp_path / "work"), "--out", str(out)]
    arguments += ["--files", "test_both", "--least", "2"]
    assert command.main(arguments) == 1
    report = json.loads(out.read_text())
    (difference,) = report["differences"]
    assert difference["test"].endswith("test_passes_without_the_plugin")
    assert (difference["stock"], difference["plugin"]) == ("passed", "failed")
    assert (difference["fault"], difference["confirmed"]) == (True, True)
    assert report["complaints"] == ["1 tests differ"]
    assert report["passed_in_both"] == 2
    assert (report["files"]["test_both"]["in_both"], report["left"]) == (4, 0)
    assert report["files"].keys() == {"test_both"}
    (journal,) = (tmp_path / "work").glob(f"{STOCK}-*/test_both.1-1.jsonl")
    before = journal.read_text()
    assert command.main([*arguments, "--shard", "1/2"]) == 1
    assert journal.read_text() == before
    assert not list(journal.parent.glob("*1-2*"))
    report = json.loads(out.read_text())
    assert report["files"]["test_both"]["in_both"] == 4  # shards count together
    capsys.readouterr()
    assert command.main([*arguments, "--least", "3"]) == 1
    assert "2 tests passed in both arms, and 3 have to" in " ".join(capsys.readouterr().out.split())


def test_a_file_that_is_missing_or_cannot_be_imported_and_tests_without_a_result_are_failures(
    checkout: Path, tmp_path: Path
) -> None:
    folder = checkout / "test" / "inductor"
    (folder / "test_broken.py").write_text("import no_such_module")
    (folder / "test_both.py").write_text(
        "import unittest\nclass Both(unittest.TestCase):\n    def test_passes(self): pass\n"
    )
    out = tmp_path / "out.json"
    arguments = [str(checkout), "--work", str(tmp_path / "work"), "--out", str(out), "--least", "1"]

    def complaints(*others: str) -> list[str]:
        status = command.main([*arguments, *others])
        written = json.loads(out.read_text())["complaints"]
        assert status == int(bool(written))
        return written

    no_time = ("--files", "test_both", "--least", "0", "--limit-s", "-1")
    assert complaints(*no_time) == ["1 tests have no result; run it again to go on"]
    assert complaints(*no_time, "--shard", "2/2") == []
    assert complaints("--files", "test_both") == []
    assert complaints("--files", "test_both", "test_renamed") == [
        "not in the checkout: test_renamed"
    ]
    assert complaints("--files", "test_both", "test_unheard_of", "test_broken") == [
        "not in the checkout: test_unheard_of",
        "cannot be collected: test_broken",
    ]


def test_too_few_tests_and_any_difference_are_failures() -> None:
    outcome = command.Outcome({"a": {"passed_in_both": 250}, "b": {"passed_in_both": 150}})
    assert outcome.complaints(400) == []
    assert outcome.complaints(401) == ["400 tests passed in both arms, and 401 have to"]
    better = Difference("better", Result("failed"), Result("passed"))
    outcome.differences.append(Difference("known", better.stock, better.plugin, "an internal"))
    assert outcome.complaints(400) == []
    outcome.differences.append(better)
    assert outcome.complaints(400) == ["1 tests differ"]
    assert command.LEAST == 400


def test_what_could_not_be_run_once_more_in_time_is_a_difference_that_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run", mock.Mock(side_effect=AssertionError("there is no time")))
    place = Place(tmp_path, tmp_path, {STOCK: tmp_path / STOCK, PLUGIN: tmp_path / PLUGIN})
    results = {STOCK: {"a": Result("passed")}, PLUGIN: {"a": Result("failed")}}
    (difference,), none = command.confirmed(Suite("test_both.py"), results, place, (1, 1), 0.0)
    assert (difference.test, difference.is_confirmed, none) == ("a", False, [])
    for arm, outcome in ((STOCK, "passed"), (PLUGIN, "passed")):
        (tmp_path / arm).mkdir()
        line = {"test": "a", "outcome": outcome, "seconds": 1.0, "message": ""}
        place.journal(arm, Suite("test_both.py"), (2, 3), "-again").write_text(json.dumps(line))
    differing, (once,) = command.confirmed(Suite("test_both.py"), results, place, (1, 1), 0.0)
    assert (differing, once) == ([], difference)


def test_what_differs_once_and_not_again_is_listed(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no failure of the run, but it may be one of the plugin that is seen at times."""
    file = checkout / "test" / "inductor" / "test_both.py"
    file.write_text(
        "import os, pathlib, unittest\n"
        "class Both(unittest.TestCase):\n"
        "    def test_product_that_fails_once(self):\n"
        "        seen = pathlib.Path(__file__).with_name('seen')\n"
        "        again = seen.exists() or 'INDUCTOR_PLUGIN_ENABLE' not in os.environ\n"
        "        seen.touch() if 'INDUCTOR_PLUGIN_ENABLE' in os.environ else None\n"
        "        self.assertTrue(again)\n"
    )
    out = tmp_path / "out.json"
    arguments = [str(checkout), "--work", str(tmp_path / "work"), "--out", str(out)]
    assert command.main([*arguments, "--files", "test_both", "--least", "0"]) == 0
    report = json.loads(out.read_text())
    (once,) = report["unconfirmed"]
    assert (report["differences"], report["complaints"]) == ([], [])
    assert once["test"].endswith("test_product_that_fails_once")
    assert (once["stock"], once["plugin"], once["confirmed"]) == ("passed", "failed", False)
    assert "differed once, and not again:" in capsys.readouterr().out


def test_results_are_kept_for_these_sources_this_torch_and_these_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text("first")
    seen = [(digest(tmp_path, STOCK), digest(tmp_path, PLUGIN))]
    assert seen[0] == (digest(tmp_path, STOCK), digest(tmp_path, PLUGIN))
    assert seen[0][0] != seen[0][1]

    def changed() -> tuple[bool, bool]:
        seen.append((digest(tmp_path, STOCK), digest(tmp_path, PLUGIN)))
        stock, plugin = (old != new for old, new in zip(*seen[-2:], strict=True))
        return stock, plugin

    (tmp_path / "test_a.py").write_text("second")
    assert changed() == (True, True)
    monkeypatch.setattr("benchmarks.pytorch.place.version", mock.Mock(return_value="9.9"))
    assert changed() == (True, True)
    digests = {"arm.py": "own", "inductor_plugin": "another plugin", "reasons.py": "none"}

    def sources_digest(places: Iterable[str]) -> str:
        return " ".join(digests.get(Path(place).name, "") for place in places)

    monkeypatch.setattr("benchmarks.pytorch.place.sources_digest", sources_digest)
    changed()
    digests["inductor_plugin"] = "mended"
    assert changed() == (False, True)  # stock results do not depend on the plugin
    digests["arm.py"] = "mended"
    assert changed() == (True, True)
    digests["reasons.py"] = "more"
    assert changed() == (False, False)  # no result depends on why
    place = place_in(tmp_path / "work", tmp_path)
    assert place.arms[PLUGIN].name == f"{PLUGIN}-{seen[-1][1]}"
    assert place.arms[STOCK] != place.arms[PLUGIN]


def test_the_journals_of_a_file_are_those_of_all_its_shards_and_of_no_other(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, {STOCK: tmp_path})
    line = json.dumps({"test": "a", "outcome": "passed", "seconds": 1.0, "message": ""})
    for suite in (Suite("test_torchinductor.py"), Suite("test_torchinductor_dynamic_shapes.py")):
        for again in ("", "-again"):
            for index in (1, 2):
                place.journal(STOCK, suite, (index, 2), again).write_text(line)
    journals = list(place.journals(STOCK, Suite("test_torchinductor.py")))
    assert {each.name for each in journals} == {
        "test_torchinductor.1-2.jsonl",
        "test_torchinductor.2-2.jsonl",
    }
    assert known(["b", "a"], journals) == {"a": Result("passed", 1.0)}


GPU_TESTS = """
import torch
from torch.testing._internal.inductor_utils import (
    GPU_TYPE,
    HAS_GPU,
)
from triton_testing import requires_gpu

class Products(TestCase):
    @requires_gpu()
    @parametrize("dynamic", (False, True))
    @parametrize("device", ("cpu", "cuda"))
    @parametrize("kind", ['cuda', "cpu"])
    def test_mm(self, dynamic):
        a = torch.randn(4, 4, device="cuda")
        b, c = torch.randn(4, 4).to('cuda:0'), torch.randn(4).cuda()
        d = torch.randn(4, device=GPU_TYPE)
        self.assertEqual(devices, ("cpu", "cuda"))
        self.assertIn("cuda graphs", "torch.cuda")
"""


def test_a_copy_of_a_file_names_the_cpu_where_it_named_the_gpu() -> None:
    lines = [line.strip() for line in cpu_copy(GPU_TESTS).splitlines()]
    assert "@requires_gpu()" not in lines
    assert '@parametrize("dynamic", (False, True))' in lines
    assert '@parametrize("device", ("cpu",))' in lines
    assert '@parametrize("kind", ["cpu",])' in lines
    assert 'self.assertEqual(devices, ("cpu", "cpu"))' in lines
    assert lines[lines.index(")") + 1] == 'GPU_TYPE = "cpu"'
    assert 'a = torch.randn(4, 4, device="cpu")' in lines
    assert "b, c = torch.randn(4, 4).to('cpu'), torch.randn(4).cpu()" in lines
    assert 'self.assertIn("cuda graphs", "torch.cuda")' in lines
    with pytest.raises(SyntaxError):
        cpu_copy("def")


def test_the_copies_of_the_suites_have_names_of_their_own() -> None:
    names = [suite.name for suite in SUITES]
    assert len(set(names)) == len(names)
    assert {"test_max_autotune_cpu", "test_cpu_select_algorithm"} <= set(names)


@pytest.mark.slow
def test_a_file_that_needs_a_gpu_runs_as_a_copy(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = Suite("test_both.py", "passes or product", is_copied=True)
    monkeypatch.setattr(command, "SUITES", (suite,))
    out = tmp_path / "out.json"
    arguments = [str(checkout), "--work", str(tmp_path / "work"), "--out", str(out)]
    assert command.main([*arguments, "--least", "2", "--limit-s", "600"]) == 1
    report = json.loads(out.read_text())
    assert report["files"]["test_both_cpu"]["run_in_both"] == 3
    assert "test_both_cpu.py::" in report["differences"][0]["test"]
    assert [file.name for file in (checkout / "test" / "inductor").glob("*_cpu.py")] == []


@pytest.mark.parametrize("shard", ["0/2", "3/2", "half"])
def test_a_shard_that_is_none_is_refused(
    tmp_path: Path, shard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "--shard", shard])
    assert f"{shard} is no I/N" in capsys.readouterr().err


def test_a_replacement_is_called_without_the_keywords_that_only_the_original_takes() -> None:
    def original(key: int, since: int = 0) -> int:
        return key + since

    def older(key: int) -> int:
        return key

    def any_keyword(key: int, **keywords: int) -> int:
        return key + len(keywords)

    fits = fitting(original, older)
    assert isinstance(fits, FunctionType)
    assert fits(1, since=2) == 1
    with pytest.raises(TypeError):
        fits(1, other=2)
    for same in (original, any_keyword, mock.DEFAULT):
        assert fitting(original, same) is same
    assert fitting(mock.DEFAULT, older) is older


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
    skipped = counts(stock | {"same": Result("skipped")}, plugin)
    assert (skipped["in_both"], skipped["run_in_both"]) == (3, 2)
