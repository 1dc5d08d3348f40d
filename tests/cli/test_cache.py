from __future__ import annotations

import json
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Resources, Store, digest_of, open_store
from inductor_plugin.cli import main
from inductor_plugin.cli.verb import seconds, size_bytes
from inductor_plugin.config import Config
from inductor_plugin.counters import Counters
from inductor_plugin.problem import Problem
from inductor_plugin.tuning.pins import read_pins
from inductor_plugin.tuning.selection import Selection, quarantine_name
from tests.support.cache import ENVIRONMENT, decision, kernel_key, measured, record
from tests.support.fakes import offer, problem

OTHER = {"device": {"name": "cpu"}, "software": {"torch": "2.15.0"}}


@pytest.fixture
def store(cache_dir: Path) -> Store:
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    kernel = store.put_kernel(kernel_key(), {"kernel.so": b"library"})
    store.put_record(
        record(
            measured("fast", 1.0, kernel=kernel.digest),
            measured("slow", 2.0),
            measured("bad", None, status="hung", reason="no answer in 30 s"),
            decision=decision("fast", 3),
            rejected={"cutlass": "A must be row-major"},
        )
    )
    store.put_record(record(measured("fast", 1.5), problem=2, decision=decision("fast")))
    store.put_record(
        record(
            measured("slow", 3.0),
            environment=store.put_environment(OTHER),
            decision=decision("slow"),
            updated=2000.0,
        )
    )
    store.quarantine(record().environment, "bad-1", {"status": "hung", "reason": "r"})
    store.add_counts(hits=4, misses=2)
    return store


def run(store: Store, *arguments: object, status: int = 0) -> int:
    verb, *rest = map(str, arguments)
    found = main([verb, "--cache-dir", str(store.root), *rest])
    assert found == status
    return found


def told(
    store: Store, capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0
) -> Any:
    run(store, *arguments, "--json", status=status)
    return json.loads(capsys.readouterr().out)


def key() -> str:
    """Name the first record uniquely: another environment has the same problem."""
    return f"{record().environment[:12]}/{record().digest[:12]}"


def test_stats_counts_everything(store: Store, capsys: pytest.CaptureFixture[str]):
    found = told(store, capsys, "stats")
    wanted = {"records": 3, "kernels": 1, "hits": 4, "misses": 2, "quarantined": 1, "corrupt": 0}
    assert {name: found[name] for name in wanted} == wanted
    assert found["bytes"] > found["kernel_bytes"] > 7
    one = record()
    store.layout.record(one.environment, one.op, one.digest).write_bytes(b"damaged")
    assert told(store, capsys, "stats")["corrupt"] == 1


def test_stats_counts_the_second_cache_apart(
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    assert "cache_read" not in told(store, capsys, "stats")
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_READ", str(store.root))
    own = open_store(tmp_path / "own")
    fields = told(own, capsys, "stats")
    assert (fields["records"], fields["read_records"], fields["read_kernels"]) == (0, 3, 1)
    assert fields["cache_read"] == str(store.root)


def test_stats_of_no_cache_are_zeros_and_make_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["stats", "--json", "--cache-dir", str(tmp_path / "none")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["kernels"], found["bytes"], found["hits"]) == (0, 0, 0, 0)
    assert not (tmp_path / "none").exists()


def test_ls_filters_and_limits(store: Store, capsys: pytest.CaptureFixture[str]):
    rows = told(store, capsys, "ls")
    assert {row["describe"] for row in rows} == {"mm(1x512)", "mm(2x512)"}
    assert {row["winner"] for row in rows} == {"fast", "slow"}
    assert len(rows) == 3
    assert told(store, capsys, "ls", "--op", "bmm") == []
    assert len(told(store, capsys, "ls", "--environment", record().environment[:10])) == 2
    assert len(told(store, capsys, "ls", "--limit", "1")) == 1
    run(store, "ls", "--limit", 1)
    assert "2 more" in capsys.readouterr().out
    assert [row["key"] for row in told(store, capsys, "ls", "--kernels")] == [kernel_key().digest]
    assert [row["candidate"] for row in told(store, capsys, "ls", "--quarantine")] == ["bad-1"]


def test_ls_shows_what_show_takes(store: Store, capsys: pytest.CaptureFixture[str]):
    run(store, "ls", "--environment", record().environment)
    shown = capsys.readouterr().out
    assert record().digest[:12] in shown
    assert told(store, capsys, "show", key())["describe"] == "mm(1x512)"
    run(store, "show", key())
    assert '"winner": "fast"' in capsys.readouterr().out
    assert told(store, capsys, "show", kernel_key().digest[:9])["key"]["template"] == "gemm"
    assert told(store, capsys, "show", record().environment[:9])["software"] == {"torch": "2.14.1"}


@pytest.mark.parametrize("verb", ["show", "explain"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [("ffffffffff", "nothing in"), ("", "nothing in"), ("0/0/0/0", "nothing in")],
)
def test_an_unknown_key_is_one_line_and_2(
    store: Store, verb: str, name: str, reason: str, capsys: pytest.CaptureFixture[str]
):
    run(store, verb, name, status=2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert reason in captured.err
    assert "inductor-plugin ls" in captured.err
    assert captured.err.count("\n") == 1


def test_a_key_that_is_not_unique_names_what_it_could_be(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    run(store, "show", record().digest, status=2)
    said = capsys.readouterr().err
    assert "not unique" in said
    assert record().environment[:12] in said


def test_explain_tells_why_and_what_would_be_a_miss(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    found = told(store, capsys, "explain", key())
    assert (found["winner"], found["reason"]) == ("fast", "fastest")
    assert [one["candidate"] for one in found["candidates"]] == ["fast", "slow", "bad"]
    assert found["candidates"][2]["reason"] == "no answer in 30 s"
    assert found["rejected"] == {"cutlass": "A must be row-major"}
    assert found["nearest"]["differences"] == [
        {"field": "size", "left": [2, 512], "right": [1, 512]}
    ]
    (other,) = found["environments"]
    assert other["has_this_problem"]
    assert other["differences"] == [
        {"field": "software.torch", "left": "2.15.0", "right": "2.14.1"}
    ]
    run(store, "explain", key())
    said = capsys.readouterr().out
    for words in (
        "Runs: fast",
        "no answer in 30 s",
        "A must be row-major",
        "software.torch",
        "size:",
    ):
        assert words in said


def test_the_winner_s_kernel_is_shown_with_what_it_takes(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    assert told(store, capsys, "show", key())["winner_kernel"]["registers"] is None
    run(store, "explain", key())
    assert "what it takes is not known" in capsys.readouterr().out
    spilling = store.put_kernel(kernel_key("k2"), {"kernel.so": b"2"}, Resources(168, 8, 512, 384))
    store.put_record(
        record(
            measured("fast", 1.0, kernel=spilling.digest),
            measured("wide", None, status="pruned", reason="it spills 96 bytes a thread"),
            problem=3,
            decision=decision("fast"),
        )
    )
    name = f"{record().environment[:12]}/{record(problem=3).digest[:12]}"
    wanted = {
        "key": spilling.digest,
        "registers": 168,
        "spills": 8,
        "shared_bytes": 512,
        "threads": 384,
    }
    assert told(store, capsys, "show", name)["winner_kernel"] == wanted
    assert told(store, capsys, "explain", name)["kernel"] == wanted
    for verb in ("show", "explain"):
        run(store, verb, name)
        said = capsys.readouterr().out
        assert f"{spilling.digest[:12]}, 168 registers a thread, 8 bytes spilled a thread" in said
        assert "512 bytes of shared memory a block, 384 threads a block" in said
        assert "pruned" in said
        assert "it spills 96 bytes a thread" in said
    store.layout.kernel(spilling.digest).joinpath("entry.json").write_bytes(b"damaged")
    assert told(store, capsys, "explain", name)["kernel"] is None
    nothing = f"{record().environment[:12]}/{record(problem=2).digest[:12]}"
    assert told(store, capsys, "show", nothing)["winner_kernel"] is None


def test_explain_of_a_kernel_says_what_to_use(store: Store, capsys: pytest.CaptureFixture[str]):
    run(store, "explain", kernel_key().digest, status=2)
    assert "use `show`" in capsys.readouterr().err


def test_diff_names_fields(store: Store, capsys: pytest.CaptureFixture[str]):
    other = f"{open_store(store.root).put_environment(OTHER)[:12]}/{record().digest[:12]}"
    found = {
        one["field"]: (one["left"], one["right"])
        for one in told(store, capsys, "diff", key(), other)
    }
    assert found["environment.software.torch"] == ("2.14.1", "2.15.0")
    assert found["winner"] == ("fast", "slow")
    assert found["median_ms.slow"] == (2.0, 3.0)
    assert not any(name.startswith("problem") for name in found)
    run(store, "diff", key(), kernel_key().digest, status=2)


def test_verify_ends_with_1_when_something_is_damaged(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    assert told(store, capsys, "verify")["damaged"] == []
    path = next(store.iter_kernels()).path("kernel.so")
    path.write_bytes(b"librarY")
    (one,) = told(store, capsys, "verify", status=1)["damaged"]
    assert one["kind"] == "kernel"
    assert "kernel.so" in one["reason"]
    assert path.exists()


@pytest.mark.parametrize("kind", ["schema", "environment"])
def test_verify_misses_no_file_that_is_gone(
    store: Store, kind: str, capsys: pytest.CaptureFixture[str]
):
    layout = store.layout
    path = layout.schema if kind == "schema" else layout.environment(record().environment)
    path.unlink()
    for verb in ("ls", "stats", "verify"):  # none of them may mend it before it is named
        run(store, verb, status=int(verb == "verify"))
    assert f"{kind} {path}: it is missing" in capsys.readouterr().out


def failing(store: Store, rows: int, *names: str) -> tuple[Problem, str]:
    """Put candidates that failed on a problem into record and quarantine, as a run does."""
    one = problem(rows=rows)
    digest, environment = digest_of(one.fields()), record().environment
    candidates = [measured(name, None, status="hung", reason="no answer") for name in names]
    known = record(measured("library"), *candidates, op=one.op, digest=digest)
    store.put_record(replace(known, problem=one.fields(), decision=decision("library")))
    for name in names:
        fields = {"candidate": name, "status": "hung", "reason": "no answer", "problem": "mm"}
        store.quarantine(environment, quarantine_name(name, digest), fields)
    return one, digest


def tried(store: Store, one: Problem, *names: str) -> set[str]:
    """Return what the next run measures on a problem, beside the library kernel."""
    counters, config = Counters(), Config.load({"cache_dir": str(store.root)}, environ={})
    environment = record().environment
    selection = Selection(config, open_store(store.root), environment, dict, counters)
    offers = [offer(name, "template", library=name == "library") for name in ("library", *names)]
    task = selection.plan(one, offers, {}, None, None).task
    return {found.candidate_id for found in task.entries} - {"library"} if task else set()


def test_a_released_candidate_is_tried_by_the_next_run(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    one, digest = failing(store, 8, "bad", "worse")
    other, _ = failing(store, 16, "bad")
    assert tried(store, one, "bad", "worse") == set()
    name = quarantine_name("bad", digest)
    (row,) = told(store, capsys, "release", name)["released"]
    assert row == {
        "environment": record().environment,
        "candidate": name,
        "problem": "mm",
        "status": "hung",
        "reason": "no answer",
        "records": 1,
    }
    assert tried(store, one, "bad", "worse") == {"bad"}
    assert tried(store, other, "bad") == set()
    run(store, "release", name, status=2)
    assert "ls --quarantine" in capsys.readouterr().err


def test_a_candidate_is_released_on_every_problem_by_its_own_name_or_all_are(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    one, _ = failing(store, 8, "bad", "worse")
    other, _ = failing(store, 16, "bad")
    run(store, "release", "ba", status=2)  # of two problems, and `bad-1` of none
    assert "is the start of 3 names" in capsys.readouterr().err
    assert len(told(store, capsys, "release", "bad")["released"]) == 2
    assert tried(store, one, "bad", "worse") == tried(store, other, "bad") == {"bad"}
    assert told(store, capsys, "release", "--all", "--environment", "ffff")["released"] == []
    run(store, "release", "--all")
    said = capsys.readouterr().out
    assert "2 of 2 released" in said
    assert "hung: no answer" in said
    assert tried(store, one, "bad", "worse") == {"bad", "worse"}
    assert told(store, capsys, "ls", "--quarantine") == []
    assert told(store, capsys, "release", "--all") == {"released": []}


@pytest.mark.parametrize("arguments", [(), ("name", "--all")])
def test_release_takes_a_name_or_all(store: Store, arguments: tuple[str, ...]):
    with pytest.raises(SystemExit) as raised:
        run(store, "release", *arguments)
    assert raised.value.code == 2
    assert len(list(store.iter_quarantine())) == 1


def test_a_damaged_record_is_named_by_show_and_ls(store: Store, capsys: pytest.CaptureFixture[str]):
    one = record()
    store.layout.record(one.environment, one.op, one.digest).write_bytes(b"damaged")
    run(store, "show", key(), status=2)
    assert "is damaged" in capsys.readouterr().err
    run(store, "ls", "--json")
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 2
    assert "is damaged" in captured.err


def test_prune_takes_sizes_and_spans(store: Store, capsys: pytest.CaptureFixture[str]):
    assert told(store, capsys, "prune", "--older-than", "1d")["kernels"] == 0
    assert told(store, capsys, "prune", "--max-bytes", "0")["kernels"] == 1
    assert told(store, capsys, "stats")["records"] == 0


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("20k", 20_000), ("1.5GB", 1_500_000_000), ("3 m", 3_000_000)]
)
def test_sizes(text: str, size: int):
    assert size_bytes(text) == size


@pytest.mark.parametrize(("text", "span"), [("90", 90), ("12h", 43200), ("30d", 2592000)])
def test_spans(text: str, span: float):
    assert seconds(text) == span


@pytest.mark.parametrize("text", ["", "-1", "x", "1q"])
def test_what_is_no_size_or_span_is_refused(text: str):
    for parse in (size_bytes, seconds):
        with pytest.raises(ArgumentTypeError, match="write"):
            parse(text)


def test_a_cache_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "--cache-dir", str(tmp_path / "none")]) == 2
    assert "there is no cache at" in capsys.readouterr().err


def test_a_refused_directory_is_one_line_and_2(store: Store, capsys: pytest.CaptureFixture[str]):
    store.root.chmod(0o777)
    run(store, "stats", status=2)
    assert "chmod go-w" in capsys.readouterr().err


def test_export_import_and_merge(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert told(store, capsys, "export", tmp_path / "x.tar.gz")["records"] == 3
    other = open_store(tmp_path / "other")
    assert told(other, capsys, "import", tmp_path / "x.tar.gz")["records"] == 3
    assert told(other, capsys, "verify")["damaged"] == []
    assert main(["merge", str(tmp_path / "third"), str(store.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == 1
    assert told(open_store(tmp_path / "third"), capsys, "stats")["records"] == 3
    run(other, "import", tmp_path / "x.tar.gz")
    assert capsys.readouterr().out == (
        "new: records 0, kernels 0, quarantined 0, environments 0; "
        "records that were there and changed: 0; there already and unchanged: 7\n"
    )
    run(store, "import", tmp_path / "nothing", status=2)
    capsys.readouterr()
    run(store, "export", tmp_path / "none" / "x.tgz", status=2)
    assert f"there is no folder {tmp_path / 'none'}; make it" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main(["merge", str(tmp_path / "third"), str(tmp_path / "nothing")]) == 2


def test_pinned_decisions_can_be_checked_and_used(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "pins.json"
    assert told(store, capsys, "pin", file)["pins"] == 3
    one = record()
    assert read_pins(str(file)).winner(one.environment, one.op, one.digest) == "fast"
    assert told(store, capsys, "check", file)["different"] == []
    store.put_record(record(measured("new", 0.5), decision=decision("new", 9), updated=3000.0))
    (found,) = told(store, capsys, "check", file, status=1)["different"]
    assert (found["pinned"], found["found"]) == ("fast", "new")
    empty = open_store(tmp_path / "empty")
    assert len(told(empty, capsys, "check", file, status=1)["different"]) == 3


def test_pin_can_keep_records_from_being_pruned(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(store, "pin", tmp_path / "pins.json", "--op", "mm", "--keep")
    capsys.readouterr()
    pruned = told(store, capsys, "prune", "--max-bytes", "0")
    assert (pruned["kernels"], pruned["records"]) == (0, 0)


@pytest.mark.parametrize("content", ["", "[]", '{"pins": [{}]}', "null"])
def test_a_file_that_is_no_pin_file_is_named(
    store: Store, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "pins.json").write_text(content)
    run(store, "check", tmp_path / "pins.json", status=2)
    assert "is not a pin file" in capsys.readouterr().err
    run(store, "check", tmp_path / "nothing", status=2)
