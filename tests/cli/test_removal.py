from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from inductor_plugin.cache import Store, digest_of, document, open_store
from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.cache.size import evict
from inductor_plugin.config import Config
from inductor_plugin.problem import Problem
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.selection import Selection
from tests.support.cache.records import decision, kernel_key, measured, record
from tests.support.cli.command import answer_of, key, run
from tests.support.fakes.tasks import offer, problem


def failing(store: Store, rows: int, *names: str) -> tuple[Problem, str]:
    """Put candidates that failed on a problem into record and quarantine, as a run does."""
    product = problem(rows=rows)
    digest, environment = digest_of(product.fields()), record().environment
    candidates = [measured(name, None, status="raised", reason="no answer") for name in names]
    known = record(measured("library"), *candidates, op=product.op, digest=digest)
    store.put_record(replace(known, problem=product.fields(), decision=decision("library")))
    for name in names:
        fields = {"candidate": name, "status": "raised", "reason": "no answer", "problem": "mm"}
        store.quarantine(environment, quarantine_name(name, digest), fields)
    return product, digest


def tried(store: Store, product: Problem, *names: str) -> set[str]:
    """Return what the next run measures on a problem, beside the library kernel."""
    counters, config = Counters(), Config.load({"cache_dir": str(store.root)}, environ={})
    environment = record().environment
    selection = Selection(config, open_store(store.root), environment, dict, counters)
    offers = [offer(name, "template", library=name == "library") for name in ("library", *names)]
    task = selection.plan(product, offers, {}, None, None).task
    return {entry.candidate_id for entry in task.entries} - {"library"} if task else set()


def test_a_released_candidate_is_tried_by_the_next_run(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    stored, digest = failing(store, 8, "bad", "worse")
    other, _ = failing(store, 16, "bad")
    assert tried(store, stored, "bad", "worse") == set()
    name = quarantine_name("bad", digest)
    (row,) = answer_of(store, capsys, "release", name)["released"]
    assert row == {
        "environment": record().environment,
        "candidate": name,
        "problem": "mm",
        "status": "raised",
        "reason": "no answer",
        "records": 1,
    }
    assert tried(store, stored, "bad", "worse") == {"bad"}
    assert tried(store, other, "bad") == set()
    run(store, "release", name, status=2)
    assert "ls --quarantine" in capsys.readouterr().err


def test_a_candidate_is_released_on_every_problem_by_its_own_name_or_all_are(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    stored, _ = failing(store, 8, "bad", "worse")
    other, _ = failing(store, 16, "bad")
    run(store, "release", "ba", status=2)  # of two problems, and `bad-1` of none
    assert "is the start of 3 names" in capsys.readouterr().err
    assert len(answer_of(store, capsys, "release", "bad")["released"]) == 2
    assert tried(store, stored, "bad", "worse") == tried(store, other, "bad") == {"bad"}
    assert answer_of(store, capsys, "release", "--all", "--environment", "ffff")["released"] == []
    run(store, "release", "--all")
    said = capsys.readouterr().out
    assert "2 of 2 released" in said
    assert "raised: no answer" in said
    assert tried(store, stored, "bad", "worse") == {"bad", "worse"}
    assert answer_of(store, capsys, "ls", "--quarantine") == []
    assert answer_of(store, capsys, "release", "--all") == {"released": []}


@pytest.mark.parametrize("arguments", [(), ("name", "--all")])
def test_release_takes_a_name_or_all(store: Store, arguments: tuple[str, ...]):
    with pytest.raises(SystemExit) as raised:
        run(store, "release", *arguments)
    assert raised.value.code == 2
    assert len(list(store.iter_quarantine())) == 1


def test_prune_takes_sizes_and_spans(store: Store, capsys: pytest.CaptureFixture[str]):
    assert answer_of(store, capsys, "prune", "--older-than", "1d")["kernels"] == 0
    assert answer_of(store, capsys, "prune", "--max-bytes", "0")["kernels"] == 1
    assert answer_of(store, capsys, "stats")["records"] == 0


def test_a_retuned_problem_is_measured_again_and_others_are_not(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    stored, digest = failing(store, 8, "bad")
    other, _ = failing(store, 16, "bad")
    elsewhere = {"candidate": "bad", "status": "raised"}  # the same problem on another machine
    store.quarantine("f" * 64, quarantine_name("bad", digest), elsewhere)
    assert tried(store, stored, "bad") == tried(store, other, "bad") == set()
    name = f"{record().environment[:12]}/{digest[:12]}"
    (row,) = answer_of(store, capsys, "retune", name)["retuned"]
    assert (row["candidates"], row["quarantined"]) == (2, 1)
    assert tried(store, stored, "bad") == {"bad"}
    assert tried(store, other, "bad") == set()
    run(store, "retune", name, status=2)
    kept = key()
    run(store, "retune", kept)
    said = capsys.readouterr().out
    assert "The next compile measures these problems again" in said
    assert "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1" in said
    assert len(list(store.iter_kernels())) == 1


@pytest.mark.parametrize("verb", ["retune", "rm"])
def test_a_pinned_record_goes_only_by_force(
    store: Store, verb: str, capsys: pytest.CaptureFixture[str]
):
    store.pin_record(record())
    run(store, verb, key(), status=2)
    assert "is pinned; end that with `inductor-plugin unpin`" in capsys.readouterr().err
    run(store, verb, key(), "--force")
    run(store, "show", key(), status=2)


def test_rm_removes_records_kernels_and_environments(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    environment = record().environment
    removed = answer_of(store, capsys, "rm", kernel_key().digest[:9], key())["removed"]
    assert [row["kind"] for row in removed] == ["kernel", "record"]
    assert [path.stem for path in store.record_paths()].count(record().digest) == 1
    run(store, "rm", environment[:12], status=2)
    assert "--force removes it with all its records" in capsys.readouterr().err
    run(store, "rm", environment[:12], "-y")
    assert len(list(store.record_paths())) == 1
    run(store, "verify")
    run(store, "rm", "ffffff", status=2)


def test_a_kernel_in_use_is_not_removed(store: Store, capsys: pytest.CaptureFixture[str]):
    digest = kernel_key().digest
    with store.lock_kernel(digest):
        run(store, "rm", digest, status=1)
    assert "0 of 1 removed" in capsys.readouterr().out
    assert store.layout.kernel(digest).is_dir()


def test_clear_asks_and_removes_everything(store: Store, capsys: pytest.CaptureFixture[str]):
    store.pin_record(record())
    run(store, "clear", status=2)
    said = capsys.readouterr().err
    assert "records 3, kernels 1" in said
    assert "do it with --force" in said
    assert answer_of(store, capsys, "clear", "--force") == {
        "records": 3,
        "kernels": 1,
        "environments": 2,
        "quarantined": 1,
        "packs": 0,
        "graphs": 0,
    }
    answer = answer_of(store, capsys, "stats")
    assert (answer["records"], answer["kernels"], answer["environments"], answer["hits"]) == (
        0,
        0,
        0,
        4,
    )
    run(store, "verify")


def test_prune_says_what_it_would_do_and_why_it_does_nothing(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    store.pin_record(record())
    before = answer_of(store, capsys, "stats")
    answer = answer_of(store, capsys, "prune", "--max-bytes", "0", "--dry-run")
    assert (answer["kernels"], answer["records"], answer["pinned"]) == (0, 2, 2)
    assert answer_of(store, capsys, "stats") == before
    for arguments, words in (
        ((), "only leftovers of killed processes go"),
        (("--max-bytes", "1GiB"), "nothing had to go"),
        (("--older-than", "1d"), "all of it used since then"),
        (("--max-bytes", "0", "--dry-run"), "would remove kernels 0, records 2"),
        (("--max-bytes", "0"), "2 entries stay because they are pinned; see `unpin`"),
    ):
        run(store, "prune", *arguments)
        assert words in capsys.readouterr().out
    with store.lock_kernel(kernel_key().digest):
        run(store, "unpin", "--all")
        run(store, "prune", "--max-bytes", "0")
        assert "1 entries stay because a process uses them" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("prune", "--max-bytes", "0"),
        ("pin", "FILE", "--keep"),
        ("unpin", "--all"),
        ("release", "--all"),
        ("retune", "ba90"),
        ("rm", "ba90"),
        ("clear", "--force"),
        ("verify", "--repair"),
        ("stats", "--zero"),
    ],
)
def test_what_cannot_be_changed_ends_with_2(
    store: Store, tmp_path: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    words = [str(tmp_path / "pins.json") if word == "FILE" else word for word in arguments]
    store.layout.schema.write_bytes(document.dump({"format": 2}))  # only read from now on
    run(store, *words, status=2)
    assert "cannot be changed: the cache has format 2" in capsys.readouterr().err
    assert not (tmp_path / "pins.json").exists()


def test_retune_fails_if_a_candidate_stays_in_quarantine(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    _, digest = failing(store, 8, "bad")
    unlink = Path.unlink

    def fails(path: Path, *, missing_ok: bool = False) -> None:
        if "quarantine" in str(path):
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", fails)
    run(store, "retune", digest[:16], status=2)
    assert "stays in quarantine: " in capsys.readouterr().err


def test_an_environment_stays_as_long_as_one_of_its_records(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(evict, "remove_record", partial(evict.remove_record, wait_s=0.02))
    kept, environment = record(), record().environment
    with store.lock_kernel(f"records-{kept.digest[:2]}"):
        run(store, "rm", environment[:12], "--force", status=1)
    assert "0 of 1 removed" in capsys.readouterr().out
    assert store.layout.record(environment, kept.op, kept.digest).exists()
    run(store, "verify")  # environment.json says what that record depends on
    run(store, "rm", environment[:12], "--force")
    assert not store.layout.environment(environment).exists()


@pytest.mark.parametrize(("verb", "done"), [("rm", "removed"), ("retune", "retuned")])
def test_a_key_that_is_named_twice_is_one(
    store: Store, verb: str, done: str, capsys: pytest.CaptureFixture[str]
):
    digest = record(problem=2).digest
    assert len(answer_of(store, capsys, verb, digest, digest[:12])[done]) == 1


def test_a_graph_is_not_measured_by_itself(store: Store, capsys: pytest.CaptureFixture[str]):
    graph = store.put_record(record(measured("tuned"), op=GRAPH, problem=5))
    run(store, "retune", graph.digest, status=2)
    assert "is a whole graph; `rm` it" in capsys.readouterr().err
    assert store.record(graph.environment, graph.op, graph.digest) == graph


def test_clear_says_what_is_in_use_and_ends_with_1(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    with store.lock_kernel(kernel_key().digest):
        run(store, "clear", "--force", status=1)
    assert "0 records and 1 kernels are in use and stay" in capsys.readouterr().out
    run(store, "clear", "--force")
    assert "in use" not in capsys.readouterr().out


def test_a_record_that_is_in_use_is_not_retuned(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(evict, "remove_record", partial(evict.remove_record, wait_s=0.02))
    digest = record(problem=2).digest
    with store.lock_kernel(f"records-{digest[:2]}"):
        run(store, "retune", digest, status=2)
    assert "is in use by another process; try again" in capsys.readouterr().err
