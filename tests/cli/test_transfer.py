from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, Store, open_store
from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.cache.transfer.archive import export_archive
from inductor_plugin.cache.transfer.draft import exclusive
from inductor_plugin.cli import main
from inductor_plugin.tuning.pins.document import read_file
from tests.support.cache.records import ENVIRONMENT, decision, measured, put_library, record
from tests.support.cli.command import answer_of, filled, run
from tests.support.cli.committed import hold
from tests.support.trust.payload import FRIEND, of_many


def test_export_import_and_merge(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert answer_of(store, capsys, "export", tmp_path / "x.tar.gz")["records"] == 3
    other = open_store(tmp_path / "other")
    assert answer_of(other, capsys, "import", "--trust", tmp_path / "x.tar.gz")["records"] == 3
    assert answer_of(other, capsys, "verify")["damaged"] == []
    assert main(["merge", str(tmp_path / "third"), str(store.root), "--json"]) == 0
    merged = json.loads(capsys.readouterr().out)
    hold("merge_caches", merged)
    assert merged["kernels"] == 1
    assert answer_of(open_store(tmp_path / "third"), capsys, "stats")["records"] == 3
    run(other, "import", "--trust", tmp_path / "x.tar.gz")
    assert capsys.readouterr().out == (
        "new: records 0, kernels 0, quarantined 0, environments 0; "
        "records that were there and changed: 0; there already and unchanged: 7\n"
        "It holds 1 libraries of native code, which your processes will load; of its new kernels "
        "trusted keys have signed 0.\n"
    )
    run(store, "import", tmp_path / "nothing", status=2)
    capsys.readouterr()
    run(store, "export", tmp_path / "none" / "x.tgz", status=2)
    assert f"there is no folder {tmp_path / 'none'}; make it" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert main(["merge", str(tmp_path / "third"), str(tmp_path / "nothing")]) == 2


def test_an_import_that_fails_makes_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "text").write_text("no archive")
    for name, reason in (("none", "there is no file"), ("", "no plain file"), ("text", "damaged")):
        file = str(tmp_path / name)
        assert main(["import", file, "--cache-dir", str(tmp_path / "cache")]) == 2
        assert reason in capsys.readouterr().err
    store = filled(tmp_path / "full")
    run(store, "export", tmp_path / "whole")
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-30])
    assert main(["import", str(tmp_path / "cut"), "--cache-dir", str(tmp_path / "cache")]) == 2
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache").mkdir(mode=0o700)
    assert main(["import", str(tmp_path / "cut"), "--cache-dir", str(tmp_path / "cache")]) == 2
    assert (tmp_path / "cache").exists()


@pytest.mark.parametrize("verb", ["import", "merge"])
def test_a_mistyped_target_is_refused_and_a_new_one_announced(
    verb: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(store, "export", tmp_path / "file")
    (tmp_path / "documents").mkdir(mode=0o700)
    (tmp_path / "documents" / "letter").write_text("dear")
    (tmp_path / "empty").mkdir(mode=0o700)

    def fill(target: str | Path) -> int:
        into = tmp_path / target
        return main(
            ["merge", str(into), str(store.root)]
            if verb == "merge"
            else ["import", str(tmp_path / "file"), "--trust", "--cache-dir", str(into)]
        )

    before = sorted(tmp_path.rglob("*"))
    for target, why in (
        ("no/cache", f"there is no folder {tmp_path / 'no'}; make it"),
        ("documents", "holds other files and is no cache"),
        ("file", "is not a pin file" if verb == "merge" else "is no directory"),
    ):
        capsys.readouterr()
        assert fill(target) == 2
        assert why in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    for target in ("new", "empty"):
        assert fill(target) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"new cache at {tmp_path / target}"
        assert fill(target) == 0
        assert capsys.readouterr().out.startswith("new: records 0,")


def test_merge_needs_two_caches(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(store.root)
    for source, why in (("empty", "is no cache"), ("link", "link are the same cache; name two")):
        assert main(["merge", str(store.root), str(tmp_path / source)]) == 2
        assert why in capsys.readouterr().err
    assert main(["merge", "-", str(store.root)]) == 2
    assert "'-' is no directory" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["precompile", "demo"])
def test_verbs_that_compile_refuse_a_mistyped_cache_at_once(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert main([verb, "--cache-dir", str(tmp_path / "no" / "cache")]) == 2
    assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_import_says_that_code_will_be_loaded(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    assert "whose code you would run" in " ".join(capsys.readouterr().out.split())


def test_a_pack_forges_no_line_of_what_import_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    line = "kernels: all signed by the build server"
    pack = Pack("H200", "sm_90a", 1000.0, {"machine": "x"}, (f"m:f\n{line}",), (), ())
    store, file = open_store(tmp_path / "from"), tmp_path / "x.pack"
    export_archive(store, file, pack=pack)
    run(open_store(tmp_path / "to"), "import", file)
    said = capsys.readouterr().out
    assert line in said
    assert line not in said.splitlines()


def another(path: Path, winner: str, samples: int, ms: float) -> Store:
    """Return a cache that decides the problem of the first record for another candidate."""
    store = open_store(path)
    store.put_environment(ENVIRONMENT)
    row = measured(winner, ms, samples_ms=(ms,) * samples)
    store.put_record(record(row, decision=decision(winner, 9, 9000.0)))
    return store


@pytest.mark.parametrize("samples", [1, 9])
def test_merge_takes_any_number_of_caches_and_lists_conflicts_with_both_timings(
    store: Store, tmp_path: Path, samples: int, capsys: pytest.CaptureFixture[str]
):
    new = another(tmp_path / "new", "new", samples, 0.25)
    words = ["merge", str(tmp_path / "all"), str(store.root), str(new.root)]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    hold("merge_caches", said)
    assert (said["records"], said["kernels"], said["environments"]) == (3, 1, 2)
    (conflict,) = said["conflicts"]
    result = {name: (row["winner"], row["winner_ms"]) for name, row in conflict["sources"].items()}
    assert result == {str(store.root): ("fast", 1.0), str(new.root): ("new", 0.25)}
    kept = open_store(tmp_path / "all").record(record().environment, "mm", record().digest)
    assert kept is not None
    assert kept.decision is not None
    assert kept.decision.winner == conflict["kept"] == ("new" if samples == 9 else "fast")
    assert {"fast", "slow", "new"} <= kept.candidates.keys()
    assert main(words) == 0
    assert "1 problems are decided differently" in capsys.readouterr().out


def test_merge_writes_a_pin_file_of_caches_and_pin_files(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    new = another(tmp_path / "new", "new", 9, 0.25)
    first, second, both = (tmp_path / name for name in ("a.json", "b.json", "both.json"))
    run(store, "pin", first)
    run(new, "pin", second)
    for sources in ((first, second), (second, store.root), (new.root, first)):
        both.unlink(missing_ok=True)
        assert main(["merge", str(both), *map(str, sources)]) == 0
        assert read_file(both).pins == {**read_file(first).pins, **read_file(second).pins}
    before = both.read_text()
    assert main(["merge", str(both), str(first)]) == 0  # takes over, and nothing is new
    assert both.read_text() == before
    assert main(["merge", str(tmp_path / "cache"), str(first)]) == 2
    assert "a pin file does not have" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("condemned", [False, True], ids=["in its record", "in quarantine"])
def test_a_merge_keeps_no_pin_whose_winner_a_named_cache_has_seen_fail(
    condemned: bool, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pin has more samples than the cache's decision; of the second problem the cache has no other."""
    run(store, "pin", tmp_path / "pins.json")
    new = another(tmp_path / "new", "lib", 1, 0.25)
    for problem in (1, 2):
        renewed = record(problem=problem)
        if condemned:
            name = quarantine_name("fast", renewed.digest)
            new.quarantine(renewed.environment, name, {"status": "wrong", "candidate": "fast"})
        else:
            wrong = measured("fast", None, status="wrong")
            new.put_record(record(wrong, problem=problem))
    words = [str(tmp_path / "pins.json"), str(new.root)]
    assert main(["diff", *words]) == 0
    assert capsys.readouterr().out.count(f"fast; wrong in {new.root}") == 2
    assert main(["merge", *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    hold("merge_pins", said)
    kept = {row["digest"]: row["kept"] for row in said["conflicts"]}
    assert kept == {record().digest: "lib", record(problem=2).digest: None}
    fault = {"winner": "fast", "source": str(new.root), "status": "wrong"}
    assert [row["failed"] for row in said["conflicts"]] == [[fault], [fault]]
    winners = {pin.place: pin.winner for pin in read_file(tmp_path / "pins.json").pins.values()}
    here = {
        place: name for place, name in winners.items() if place.startswith(record().environment)
    }
    assert here == {record().place: "lib"}
    assert len(winners) == 2  # one of another environment, of which the cache has seen nothing


def test_merges_by_way_of_files_give_the_file_of_one_merge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a pin, of a rival with fewer samples, and of a cache that has seen the pin's kernel fail and decides nothing."""
    a, b = another(tmp_path / "a", "fast", 100, 0.25), another(tmp_path / "b", "lib", 50, 0.5)
    c = open_store(tmp_path / "c")
    c.put_environment(ENVIRONMENT)
    c.put_record(record(measured("fast", None, status="wrong")))
    number = itertools.count()

    def merged(*sources: Path) -> Path:
        file = tmp_path / f"{next(number)}.json"
        assert main(["merge", str(file), *map(str, sources)]) == 0
        return file

    at_once = merged(a.root, b.root, c.root)
    assert {pin.winner for pin in read_file(at_once).pins.values()} == {"lib"}
    for first, second, third in itertools.permutations((a.root, b.root, c.root)):
        both = merged(first, second)
        assert merged(both, third).read_bytes() == at_once.read_bytes()
        assert merged(third, both, merged(third), both).read_bytes() == at_once.read_bytes()
        run(open_store(third), "pin", tmp_path / "pinned.json", "--force")
        assert merged(both, tmp_path / "pinned.json").read_bytes() == at_once.read_bytes()
    both = merged(a.root, b.root)
    capsys.readouterr()
    assert main(["merge", str(both), str(c.root), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    hold("merge_pins", said)
    (conflict,) = said["conflicts"]
    assert (conflict["kept"], conflict["failed"][0]["winner"]) == ("lib", "fast")
    (spare,) = conflict["spare"]
    assert (spare["source"], spare["winner"], spare["winner_ms"]) == (str(both), "lib", 0.5)
    assert main(["diff", str(both), str(a.root)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{both}, not used 0.25 - 100 fast; wrong in {both}" in said
    (line,) = [line for line in both.read_text().splitlines() if line.endswith(': "wrong"')]
    both.write_text(both.read_text().replace(line, ""))
    assert {pin.winner for pin in read_file(both).pins.values()} == {"lib"}
    assert main(["merge", str(both), str(both)]) == 0  # without the line, it counts again
    assert both.read_bytes() == merged(a.root, b.root).read_bytes()


def test_a_merge_of_caches_says_that_a_problem_is_not_decided_any_more(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = another(tmp_path / "new", "lib", 1, 0.25)
    new.put_record(record(measured("fast", None, status="wrong")))
    words = ["merge", str(tmp_path / "all"), str(store.root), str(new.root)]
    assert main([*words, "--json"]) == 0
    (conflict,) = json.loads(capsys.readouterr().out)["conflicts"]
    kept = open_store(tmp_path / "all").record(record().environment, "mm", record().digest)
    assert kept is not None
    assert kept.valid_decision is None
    assert conflict["kept"] is None
    assert main(words) == 0
    assert (
        "1 problems are decided differently; a pinned decision is kept, or else the timing with more samples, "
        "in 1 of them not that of a winner which a source has seen to fail; 1 are not decided any more\n"
    ) in capsys.readouterr().out


def test_merges_into_a_pin_file_wait_for_each_other(store: Store, tmp_path: Path):
    first, both = tmp_path / "a.json", tmp_path / "both.json"
    run(store, "pin", first)
    merges = threading.Thread(target=main, args=(["merge", str(both), str(first)],))
    with exclusive(both):
        merges.start()
        merges.join(0.3)
        assert not both.exists()
    merges.join(10.0)
    assert read_file(both) == read_file(first)


def test_diff_compares_caches_and_pin_files(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    new = another(tmp_path / "new", "new", 9, 0.25)
    file = tmp_path / "a.json"
    run(store, "pin", file)
    capsys.readouterr()
    assert main(["diff", str(file), str(store.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["different"] == []
    assert main(["diff", str(file), str(store.root), str(new.root), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    hold("diff_sources", compared)
    rows = compared["different"]
    assert [row["sources"][str(new.root)] is None for row in rows].count(True) == 2
    assert main(["diff", str(file), str(new.root)]) == 0
    said = capsys.readouterr().out
    assert "1 problems are decided differently, 2 are not decided everywhere" in said
    assert main(["diff", str(file), str(tmp_path / "nothing")]) == 2
    assert main(["diff", "a", "b", "c", "--cache-dir", str(store.root)]) == 2


def test_merge_says_how_many_signatures_have_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = put_library(open_store(tmp_path / "own"))
    files = {name: entry.path(name) for name in entry.files}
    for name, signatures in (("full", of_many(entry)), ("b", {FRIEND.public: FRIEND.sign(entry)})):
        cache = open_store(tmp_path / name)
        cache.put_kernel(entry.key, files, None, {"signatures": signatures})
    caches = [str(tmp_path / name) for name in ("full", "b")]
    assert main(["merge", *caches]) == 0
    assert (
        "\n1 signatures are left out: a kernel keeps 16, one of a key in trusted_keys first; `show KEY` names those that are kept.\n"
        in capsys.readouterr().out
    )
    assert main(["merge", *caches, "--json"]) == 0
    merged = json.loads(capsys.readouterr().out)
    hold("merge_caches", merged)
    assert merged["signatures_left_out"] == 1


def test_a_cache_that_is_named_twice_is_merged_once(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "link").symlink_to(store.root)
    sources = [str(store.root), str(tmp_path / "link"), str(store.root)]
    assert main(["merge", str(tmp_path / "single"), sources[0]]) == 0
    single = capsys.readouterr().out
    assert main(["merge", str(tmp_path / "all"), *sources]) == 0
    assert capsys.readouterr().out == single.replace("single", "all")


def test_sources_are_named_and_not_the_cache(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(store, "diff", store.root, store.root, status=2)
    assert "--cache-dir has no meaning here" in capsys.readouterr().err
