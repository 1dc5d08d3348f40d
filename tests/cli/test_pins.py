from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from inductor_plugin.cache import Store, digest_of, open_store
from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.cache.transfer.draft import exclusive
from inductor_plugin.cli import main, pins
from inductor_plugin.inductor.candidates.offers import candidate_id
from inductor_plugin.inductor.candidates.template_choice import operator_key
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate
from inductor_plugin.tuning.pins.document import read_file
from inductor_plugin.tuning.pins.pin import tried
from inductor_plugin.tuning.pins.replay import read_pins
from tests.support.cache.records import ENVIRONMENT, decision, measured, record
from tests.support.candidates.fast_templates import RivalTemplate, rivals_offered
from tests.support.cli.command import OTHER, answer_of, key, run
from tests.support.cli.schemas import follow
from tests.support.fakes.tasks import problem
from tests.support.own_device import describe


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Make the caches' environments this machine's."""
    both = {digest_of(fields): fields for fields in (ENVIRONMENT, OTHER)}
    monkeypatch.setattr(pins, "environments_here", lambda: both)
    return both


def test_pinned_decisions_can_be_checked_and_used(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "pins.json"
    assert answer_of(store, capsys, "pin", file)["pins"] == 3
    kept = record()
    assert read_pins(str(file)).winner(kept.environment, kept.op, kept.digest) == "fast"
    first = answer_of(store, capsys, "check", file)
    assert (first["apply"], first["stale"], first["different"]) == (3, [], [])
    store.put_record(record(measured("new", 0.5), decision=decision("new", 9), updated=3000.0))
    second = answer_of(store, capsys, "check", file, status=1)
    (answer,) = second["different"]
    assert (answer["pinned"], answer["found"]) == ("fast", "new")
    without = tmp_path / "without.json"
    pins = json.loads(file.read_text())
    next(pin for pin in pins["environments"][0]["pins"] if pin["winner"] == "fast")["template"] = (
        "gone"
    )
    without.write_text(json.dumps(pins))
    third = answer_of(store, capsys, "check", without, status=1)
    assert [row["reason"] for row in third["stale"]] == ["template 'gone' is not registered"]
    follow("check", first, second, third)
    empty = open_store(tmp_path / "empty")
    assert answer_of(empty, capsys, "check", file)["different"] == []


def test_check_names_the_field_in_which_an_environment_differs(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], here: dict[str, Any]
):
    file = tmp_path / "pins.json"
    run(store, "pin", file)
    del here[digest_of(OTHER)]
    capsys.readouterr()
    run(store, "check", file, status=1)
    said = capsys.readouterr().out
    assert "1 of 3 pins do not apply here" in said
    assert "software.torch: '2.15.0' -> '2.14.1'" in said
    assert "2 of 3 pins apply here" in said


def test_check_names_a_template_that_is_gone_unless_it_is_registered_first(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rival = measured("rivals.mm-1", name="rivals::mm", kind="template")
    store.put_record(record(rival, problem=3, decision=decision("rivals.mm-1")))
    file = tmp_path / "pins.json"
    with rivals_offered():
        run(store, "pin", file)
        capsys.readouterr()
        run(store, "check", file)
        assert "4 of 4 pins apply here; of 1 only the template was" in capsys.readouterr().out
    (row,) = answer_of(store, capsys, "check", file, status=1)["stale"]
    assert (row["pinned"], row["reason"]) == ("rivals.mm-1", "template 'rivals' is not registered")
    registering = "tests.support.candidates.fast_templates:offer_rivals"
    try:
        assert answer_of(store, capsys, "check", file, "--templates", registering)["stale"] == []
    finally:
        default_registry().unregister("rivals")
    run(store, "check", file, "--templates", "nothing:x", status=2)
    assert "no module 'nothing'" in capsys.readouterr().err


def test_pin_and_check_know_the_templates_that_entry_points_name(
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    rival = measured("rivals.mm-1", name="rivals::mm", kind="template")
    store.put_record(record(rival, problem=3, decision=decision("rivals.mm-1")))
    file = tmp_path / "pins.json"
    reference = "tests.support.candidates.fast_templates:RivalTemplate"
    describe(tmp_path / "site", reference, "rivals", "rivals", "inductor_plugin.templates")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.setattr(default_registry(), "_has_installed", False)
    try:
        run(store, "pin", file)
        assert list(json.loads(file.read_text())["templates"]) == ["rivals"]
        default_registry().unregister("rivals")
        monkeypatch.setattr(default_registry(), "_has_installed", False)
        capsys.readouterr()
        assert answer_of(store, capsys, "check", file)["stale"] == []
    finally:
        if "rivals" in default_registry().names():
            default_registry().unregister("rivals")


def test_check_names_a_candidate_that_its_template_does_not_offer_any_more(
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    problem_here, file = problem(device="cpu"), tmp_path / "pins.json"
    kernel = OpKernel("rivals::mm", (), ("tests.support.candidates.fast_templates",))
    key = operator_key(Candidate("rivals", "mm", {"args": "()"}, kernel), kernel)
    winner = candidate_id("rivals::mm", key)
    rival = measured(winner, name="rivals::mm", kind="template")
    kept = record(rival, problem=3, decision=decision(winner))
    store.put_record(replace(kept, problem=problem_here.fields()))
    with rivals_offered():
        run(store, "pin", file)
        capsys.readouterr()
        answer = answer_of(store, capsys, "check", file)
        assert (answer["stale"], answer["unsure"]) == ([], 0)
        changes: list[tuple[dict[str, Any], str]] = [
            (
                {"candidates": Mock(return_value=[])},
                "template 'rivals' does not offer it any more",
            ),
            ({"reject": Mock(return_value="too small")}, "does not offer it any more: too small"),
            ({"ops": ("bmm",)}, "template 'rivals' does not serve mm any more"),
        ]
        for change, words in changes:
            with monkeypatch.context() as patch:
                for name, value in change.items():
                    patch.setattr(RivalTemplate, name, value)
                (row,) = answer_of(store, capsys, "check", file, status=1)["stale"]
                assert row["pinned"] == winner
                assert words in row["reason"]
        with monkeypatch.context() as patch:  # the same name, made of something else
            changed = Candidate("rivals", "mm", {"args": "(1,)"}, kernel)
            patch.setattr(RivalTemplate, "candidates", Mock(return_value=[changed]))
            (row,) = answer_of(store, capsys, "check", file, status=1)["stale"]
            assert row["pinned"] == winner


def test_pin_names_the_template_of_a_triton_kernel(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "pins.json"
    row = measured("triton_rows-1", name="triton_rows", kind="triton")
    row = replace(row, provenance={**row.provenance, "template": "rivals"})
    store.put_record(record(row, problem=3, decision=decision("triton_rows-1")))
    with rivals_offered():
        run(store, "pin", file)
        (pin,) = [
            pin for pin in read_pins(str(file)).pins.values() if pin.winner == "triton_rows-1"
        ]
    assert pin.template == "rivals"
    capsys.readouterr()
    (answer,) = answer_of(store, capsys, "check", file, status=1)["stale"]
    assert answer["reason"] == "template 'rivals' is not registered"


def test_a_file_of_the_first_format_is_read(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    kept = record()
    row = {"environment": kept.environment, "op": "mm", "digest": kept.digest, "winner": "slow"}
    (tmp_path / "pins.json").write_text(json.dumps({"format": 1, "pins": [row]}))
    answer = answer_of(store, capsys, "check", tmp_path / "pins.json", status=1)
    assert [(each["pinned"], each["found"]) for each in answer["different"]] == [("slow", "fast")]


def test_pin_writes_what_the_cache_has_seen_fail_and_check_takes_none_of_it_for_a_pin(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The first problem's winner is in quarantine, the second's has a rival that failed, a third was decided by nobody."""
    file, kept = tmp_path / "pins.json", record()
    wrong = measured("bad", None, status="wrong")
    store.put_record(record(wrong, problem=2))
    store.put_record(record(wrong, op="bmm", problem=3))
    name = quarantine_name("fast", kept.digest)
    store.quarantine(kept.environment, name, {"status": "raised", "reason": "r"})
    assert answer_of(store, capsys, "pin", file)["pins"] == 2
    content = read_file(file)
    assert content.failed == {
        tried(kept.environment, "fast", kept.digest): "raised",
        tried(kept.environment, "bad", record(problem=2).digest): "wrong",
        tried(kept.environment, "bad", record(problem=3).digest): "wrong",
    }
    assert kept.place not in content.pins
    assert [pin.winner for pin in content.spare[kept.place]] == ["fast"]
    said = answer_of(store, capsys, "check", file)
    assert (said["pins"], said["apply"], said["different"]) == (2, 2, [])
    run(store, "pin", file, "--op", "bmm", "--force")
    assert [*read_file(file).failed] == [tried(kept.environment, "bad", record(problem=3).digest)]
    assert "0 decisions pinned; the file also names 1 failures" in capsys.readouterr().out


def test_pin_can_keep_records_from_being_pruned(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(store, "pin", tmp_path / "pins.json", "--op", "mm", "--keep")
    capsys.readouterr()
    pruned = answer_of(store, capsys, "prune", "--max-bytes", "0")
    assert (pruned["kernels"], pruned["records"]) == (0, 0)


def test_unpin_lets_records_go(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(store, "pin", tmp_path / "pins.json", "--keep")
    capsys.readouterr()
    assert answer_of(store, capsys, "stats")["pinned"] == 3
    assert all(row["pinned"] for row in answer_of(store, capsys, "ls"))
    run(store, "ls")
    assert capsys.readouterr().out.count(" pinned") == 3
    assert len(answer_of(store, capsys, "unpin", key())["unpinned"]) == 1
    assert answer_of(store, capsys, "unpin", key())["unpinned"] == []
    assert len(answer_of(store, capsys, "unpin", "--all")["unpinned"]) == 2
    run(store, "unpin", status=2)
    run(store, "unpin", "--all", key(), status=2)
    capsys.readouterr()
    assert answer_of(store, capsys, "prune", "--max-bytes", "0")["records"] == 3


def test_a_file_is_replaced_only_by_force(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "there"
    for verb in (("pin", file), ("export", file), ("repro", key(), "--out", file)):
        file.write_text("precious")
        run(store, *verb, status=2)
        assert "is there already; replace it with --force" in capsys.readouterr().err
        assert file.read_text() == "precious"
        run(store, *verb, "--force")
        assert file.read_bytes() != b"precious"
        run(store, *verb[:-1], tmp_path / "none" / "x", status=2)
        assert "there is no folder" in capsys.readouterr().err
        run(store, *verb[:-1], tmp_path, status=2)
        assert "no plain file" in capsys.readouterr().err
        run(store, *verb[:-1], "-", status=2)
        assert "is no file; name one" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["pin", "export"])
def test_an_operator_without_records_is_named(
    store: Store, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
):
    run(store, verb, tmp_path / "x", "--op", "typo", status=2)
    assert "no record is of operator 'typo'; there are mm" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", '{"pins": [{}]}', "null", "[" * 100_000),
        '{"pins": [{"environment": [], "op": "mm", "digest": "d", "winner": "w"}]}',
        '{"pins": [{"environment": "e", "op": "\\ud800", "digest": "d", "winner": "w"}]}',
    ],
)
def test_a_file_that_is_no_pin_file_is_named(
    store: Store, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "pins.json").write_text(content)
    run(store, "check", tmp_path / "pins.json", status=2)
    assert "is not a pin file" in capsys.readouterr().err
    run(store, "check", tmp_path / "nothing", status=2)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_check_reads_plain_files_only(
    store: Store, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
):
    file = Path("/dev/zero") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(file)
    run(store, "check", file, status=2)
    assert "is not a pin file: it is a pipe or a device" in capsys.readouterr().err


def test_a_pin_file_stays_if_its_successor_cannot_be_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "pins.json"
    run(store, "pin", file)
    before = file.read_bytes()

    def full(path: Path, text: str, encoding: str) -> int:
        path.write_bytes(text.encode(encoding)[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    run(store, "pin", file, "--force", status=2)
    assert file.read_bytes() == before
    script = tmp_path / "script.py"
    script.write_bytes(b"old")
    run(store, "repro", record(problem=2).digest[:12], "--out", script, "--force", status=2)
    assert script.read_bytes() == b"old"
    files = [path.name for path in tmp_path.iterdir() if path.is_file()]
    assert sorted(files) == ["pins.json", "script.py"]


def test_a_part_of_the_decisions_is_pinned_and_unpinned(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = digest_of(OTHER)[:12]
    store.put_record(record(measured("a"), op="bmm", problem=3, decision=decision("a")))
    store.put_record(record(measured("a"), op="bmm", problem=4))  # nothing to pin
    assert answer_of(store, capsys, "pin", tmp_path / "a", "--environment", other)["pins"] == 1
    assert answer_of(store, capsys, "pin", tmp_path / "b", "--op", "bmm")["pins"] == 1
    assert answer_of(store, capsys, "stats")["pinned"] == 0
    run(store, "pin", tmp_path / "c", "--keep")
    capsys.readouterr()
    for part, count in ((("--environment", other), 1), (("--op", "bmm"), 1), ((), 2)):
        assert len(answer_of(store, capsys, "unpin", "--all", *part)["unpinned"]) == count


def test_an_environment_that_is_not_there_pins_and_exports_nothing(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for verb in ("pin", "export"):
        file = tmp_path / verb
        run(store, verb, file)
        before = file.read_bytes()
        run(store, verb, file, "--environment", "typo", "--force", status=2)
        assert "no environment begins with 'typo'" in capsys.readouterr().err
        assert file.read_bytes() == before


def test_a_file_that_somebody_else_writes_is_waited_for(store: Store, tmp_path: Path):
    file = tmp_path / "pins.json"
    pinning = threading.Thread(target=run, args=(store, "pin", file))
    with exclusive(file):
        pinning.start()
        pinning.join(0.2)
        assert not file.exists()
    pinning.join(60.0)
    assert file.exists()


def test_merge_writes_the_versions_of_templates_as_pin_does(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A file of version 1 is merged with a cache that version 2 has tuned since; what both have is of version 1."""
    pinned, merged = tmp_path / "pins.json", tmp_path / "merged.json"

    def tuned(number: int) -> None:
        rival = measured("rivals.mm-1", name="rivals::mm", kind="template")
        store.put_record(record(rival, problem=number, decision=decision("rivals.mm-1")))

    tuned(3)
    with rivals_offered():
        run(store, "pin", pinned)
        assert main(["merge", str(merged), str(store.root)]) == 0
        assert read_file(merged) == read_file(pinned)
    (was,) = read_file(pinned).templates["rivals"]
    old = json.loads(pinned.read_text())
    old["templates"]["rivals"] = ["module.Rivals 1"]
    pinned.write_text(json.dumps(old))
    first = record(problem=3)
    tuned(4)
    with rivals_offered():
        assert main(["merge", str(pinned), str(store.root)]) == 0
        capsys.readouterr()
        (row,) = answer_of(store, capsys, "check", pinned, status=1)["stale"]
    assert row["digest"] == first.digest
    assert row["reason"] == f"template 'rivals' is {was} here, and was module.Rivals 1"
