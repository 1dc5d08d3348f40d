from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, Store, document, open_store
from inductor_plugin.cache.verify import Damage
from tests.support.cache.records import ENVIRONMENT, kernel_key, record
from tests.support.cli.command import OTHER, answer_of, run


def test_verify_ends_with_1_when_something_is_damaged(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    assert answer_of(store, capsys, "verify")["damaged"] == []
    path = next(store.iter_kernels()).path("kernel.so")
    path.write_bytes(b"librarY")
    (answer,) = answer_of(store, capsys, "verify", status=1)["damaged"]
    assert answer["kind"] == "kernel"
    assert "kernel.so" in answer["reason"]
    assert path.exists()


def test_a_damaged_entry_of_any_name_is_a_line_that_no_terminal_obeys(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    path = next(store.layout.quarantined.glob("*/*.json"))
    path.rename(path.with_name("\x1b[2J\n0 damaged\n.json")).write_bytes(b"damaged")
    run(store, "verify", status=1)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert next(line for line in said.splitlines() if "[2J" in line).startswith("quarantine ")
    assert "0 damaged" not in said.splitlines()


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


def damage(store: Store) -> list[Path]:
    """Damage an entry of each kind, and return the paths."""
    kept, layout = record(), store.layout
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, (), (), (kernel_key().digest,)))
    other = next(path for path in layout.records.glob("*/environment.json"))
    paths = [
        layout.record(kept.environment, kept.op, kept.digest),
        next(layout.quarantined.glob("*/*.json")),
        next(layout.packs.glob("*.json")),
        layout.counters,
        layout.schema,
        other,
    ]
    for path in paths:
        path.write_bytes(b"damaged")
    next(store.iter_kernels()).path("kernel.so").write_bytes(b"librarY")
    return [*paths, layout.kernel(kernel_key().digest)]


def test_repair_sets_damaged_entries_aside_and_says_so(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    paths = damage(store)
    assert len(answer_of(store, capsys, "verify", status=1)["damaged"]) == len(paths)
    run(store, "verify", status=1)
    assert "`inductor-plugin verify --repair` sets damaged entries aside" in capsys.readouterr().out
    # An environment's fields are known to its own processes only.
    answer = answer_of(store, capsys, "verify", "--repair", status=1)
    said = {row["path"]: row["repair"] for row in answer["damaged"]}
    assert said.pop(str(store.layout.schema)) == "written again"
    assert set(said) == {str(path) for path in paths} - {str(store.layout.schema)}
    assert all(text.startswith(f"moved to {store.layout.damaged}/") for text in said.values())
    assert len(list(store.layout.damaged.iterdir())) == len(paths) - 1
    (left,) = answer_of(store, capsys, "verify", status=1)["damaged"]
    assert left["kind"] == "environment"
    assert "it is missing" in left["reason"]
    (row,) = answer_of(store, capsys, "verify", "--repair", status=1)["damaged"]
    assert "the next compile in this environment writes it" in row["repair"]
    open_store(store.root).put_environment(ENVIRONMENT)
    open_store(store.root).put_environment(OTHER)
    run(store, "verify")


def test_repair_leaves_what_another_version_wrote_or_cannot_be_read(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    kept = record()
    path = store.layout.record(kept.environment, kept.op, kept.digest)
    fields = document.load(path.read_bytes())
    path.write_bytes(document.dump({**fields, "format": 2}))
    other = record(problem=2)
    blocked = store.layout.record(other.environment, other.op, other.digest)
    blocked.unlink()
    blocked.mkdir()
    rows = answer_of(store, capsys, "verify", "--repair", status=1)["damaged"]
    (row,) = rows  # another version's is no damage
    assert "it stays, for it may be sound" in row["repair"]
    assert path.exists()


def test_what_was_replaced_meanwhile_is_not_set_aside(store: Store):
    kept = record()
    path = store.layout.record(kept.environment, kept.op, kept.digest)
    assert store.repair(Damage("record", path, "its checksum does not match")) == ""
    assert path.exists()
