from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor_plugin.cache import KernelKey, Resources, Store
from inductor_plugin.cli import listing, main
from inductor_plugin.cli.output import table
from inductor_plugin.tuning.environment import environment
from tests.support.cache.records import decision, kernel_key, measured, record
from tests.support.cli.command import answer_of, run


def test_stats_counts_everything(store: Store, capsys: pytest.CaptureFixture[str]):
    answer = answer_of(store, capsys, "stats")
    wanted = {"records": 3, "kernels": 1, "hits": 4, "misses": 2, "quarantined": 1, "corrupt": 0}
    assert {name: answer[name] for name in wanted} == wanted
    assert answer["bytes"] > answer["kernel_bytes"] > 7
    kept = record()
    store.layout.record(kept.environment, kept.op, kept.digest).write_bytes(b"damaged")
    assert answer_of(store, capsys, "stats")["corrupt"] == 1


def test_stats_of_no_cache_are_zeros_and_make_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(tmp_path / "none"))
    assert main(["stats", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert (parsed["records"], parsed["kernels"], parsed["bytes"], parsed["hits"]) == (0, 0, 0, 0)
    assert main(["ls"]) == 0
    assert capsys.readouterr().out == "nothing there\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("verb", ["stats", "ls"])
def test_a_directory_that_is_named_has_to_exist(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    assert main([verb, "--cache-dir", str(tmp_path / "none")]) == 2
    assert "does not exist; name one with --cache-dir" in capsys.readouterr().err
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(tmp_path / "file"))
    assert main([verb]) == 2
    assert "is no directory" in capsys.readouterr().err


def test_stats_say_how_often_the_cache_helped_and_how_full_it_is(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_LIMIT_BYTES", "1MB")
    store.pin_record(record())
    answer = answer_of(store, capsys, "stats")
    assert (answer["pinned"], answer["packs"], answer["limit_bytes"]) == (1, 0, 1_000_000)
    assert answer["hit_rate"] == pytest.approx(4 / 6)
    run(store, "stats")
    said = capsys.readouterr().out
    for words in ("4 of 6 (66.7%)", "2 of 6 (33.3%)", "of 1.0 MB (", "1 pinned", "0 packs"):
        assert words in said
    run(store, "stats", "--zero")
    assert capsys.readouterr().out == "counters are zero\n"
    answer = answer_of(store, capsys, "stats")
    assert (answer["hits"], answer["misses"], answer["hit_rate"]) == (0, 0, None)
    assert answer["records"] == 3
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_LIMIT_BYTES", "much")
    assert answer_of(store, capsys, "stats")["limit_bytes"] is None


def test_a_library_kernel_that_stays_is_not_faster_than_itself(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    stays = replace(decision("lib"), library="lib", speedup=1.0, rejected_speedup=2.209)
    store.put_record(record(measured("lib", 0.2), problem=7, decision=stays))
    earlier = replace(
        decision("lib"), library="lib", speedup=2.209
    )  # as an earlier version wrote it
    store.put_record(record(measured("lib", 0.2), problem=8, decision=earlier))
    fastest = replace(decision("lib"), library="lib", speedup=1.0)
    store.put_record(record(measured("lib", 0.2), problem=9, decision=fastest))
    (old,) = answer_of(store, capsys, "ls", "--filter", "mm(8x512)")
    assert (old["speedup"], old["rejected_speedup"]) == (1.0, 2.209)
    (alone,) = answer_of(store, capsys, "ls", "--filter", "mm(9x512)")
    assert (alone["speedup"], alone["rejected_speedup"]) == (1.0, None)
    (row,) = answer_of(store, capsys, "ls", "--filter", "mm(7x512)")
    assert (row["speedup"], row["rejected_speedup"], row["library_stays"]) == (1.0, 2.209, True)
    run(store, "ls", "--filter", "mm(7x512)")
    said = capsys.readouterr().out
    assert " 1x " in said
    assert "lib (library)" in said
    assert "2.209" not in said


@pytest.mark.parametrize(("noise", "marked"), [("win", True), ("lib", True), ("other", False)])
def test_a_record_whose_samples_vary_by_more_than_their_median_is_marked(
    store: Store, capsys: pytest.CaptureFixture[str], noise: str, marked: bool
):
    rows = [measured(name, 1.0) for name in ("win", "lib", "other")]
    loud = [replace(row, spread_ms=1.5) if row.candidate == noise else row for row in rows]
    chosen = replace(decision("win"), library="lib", speedup=9.0)
    store.put_record(record(*loud, problem=9, decision=chosen))
    (row,) = answer_of(store, capsys, "ls", "--filter", "mm(9x512)")
    assert row["noisy"] is marked
    assert len(answer_of(store, capsys, "ls", "--filter", "noisy")) == marked
    run(store, "ls", "--filter", "mm(9x512)")
    assert ("3 noisy" in capsys.readouterr().out) is marked
    assert (" noisy" in table.records_text([row], 80)) is marked


def test_ls_sorts(store: Store, capsys: pytest.CaptureFixture[str]):
    def medians(*arguments: str) -> list[float]:
        return [row["median_ms"] for row in answer_of(store, capsys, "ls", *arguments)]

    assert medians("--sort", "ms") == [3.0, 1.5, 1.0]
    assert medians("--sort", "ms", "--reverse") == [1.0, 1.5, 3.0]
    assert medians("--sort", "ms", "--limit", "1") == [3.0]
    problems = [row["problem"] for row in answer_of(store, capsys, "ls", "--sort", "problem")]
    assert problems == sorted(problems)
    for what in ("--kernels", "--quarantine", "--environments"):
        for field in ("updated", "ms", "speedup", "size", "op", "problem"):
            run(store, "ls", what, "--sort", field)


def test_ls_filters_by_text_in_any_column(store: Store, capsys: pytest.CaptureFixture[str]):
    assert len(answer_of(store, capsys, "ls", "--filter", "MM(1X512)")) == 2
    assert len(answer_of(store, capsys, "ls", "--filter", "mm(1x512)", "--filter", "slow")) == 1
    assert answer_of(store, capsys, "ls", "--filter", "nothing") == []
    assert len(answer_of(store, capsys, "ls", "--kernels", "--filter", "gemm")) == 1


def test_ls_fits_a_terminal_of_80_columns(store: Store, capsys: pytest.CaptureFixture[str]):
    rows = answer_of(store, capsys, "ls")
    rows[0]["problem"] = "attention(1x2x64x32, 1x2x64x32, 1x2x64x32) bf16 causal"
    rows[1]["pinned"] = True
    lines = table.records_text(rows, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(rows) + 1
    joined = " ".join(" ".join(lines).split())
    for words in ("1x2x64x32) bf16 causal", "pinned", rows[2]["key"][:10], "PROBLEM"):
        assert words in joined
    wide = table.records_text(rows).splitlines()
    assert len(wide) == len(rows) + 1
    assert rows[0]["winner"] in wide[1]


def test_ls_lists_environments_and_marks_this_machine_s(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    here = environment("cpu")
    here["device"] = {**here["device"], "threads": here["device"]["threads"] + 1}
    here["software"] = {**here["software"], "cpp": "gcc version 12"}
    mine = store.put_environment(here)
    rows = {row["key"]: row for row in answer_of(store, capsys, "ls", "--environments")}
    assert len(rows) == 3
    assert {digest for digest, row in rows.items() if row["this_machine"]} == {mine}
    assert rows[mine]["torch"] == torch.__version__
    assert rows[mine]["threads"] == here["device"]["threads"]
    assert rows[record().environment]["records"] == 2
    run(store, "ls", "--environments", "--environment", mine[:12])
    said = capsys.readouterr().out
    assert "this machine" in said
    assert mine[:12] in said


def test_entries_that_cannot_be_read_are_not_counted_as_more(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    kept = record()
    store.layout.record(kept.environment, kept.op, kept.digest).write_bytes(b"damaged")
    run(store, "ls")
    captured = capsys.readouterr()
    assert "more" not in captured.out
    assert "is damaged" in captured.err


def test_ls_filters_and_limits(store: Store, capsys: pytest.CaptureFixture[str]):
    rows = answer_of(store, capsys, "ls")
    assert {row["describe"] for row in rows} == {"mm(1x512)", "mm(2x512)"}
    assert {row["winner"] for row in rows} == {"fast", "slow"}
    assert len(rows) == 3
    assert answer_of(store, capsys, "ls", "--op", "bmm") == []
    assert len(answer_of(store, capsys, "ls", "--environment", record().environment[:10])) == 2
    assert len(answer_of(store, capsys, "ls", "--limit", "1")) == 1
    run(store, "ls", "--limit", 1)
    assert "2 more" in capsys.readouterr().out
    assert [row["key"] for row in answer_of(store, capsys, "ls", "--kernels")] == [
        kernel_key().digest
    ]
    assert [row["candidate"] for row in answer_of(store, capsys, "ls", "--quarantine")] == ["bad-1"]


def test_kernels_are_listed_with_whole_numbers_and_each_name_once(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    key = KernelKey("triton_mm", "s", "triton_mm", "sm_90a", "t", "")
    store.put_kernel(key, {"kernel.cubin": b"x"}, Resources(168, 0, 228_100, 384))
    run(store, "ls", "--kernels")
    said = capsys.readouterr().out
    assert " 228100 " in said
    assert said.count("triton_mm") == 1


def test_people_get_the_first_of_many_and_programs_all(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(listing, "_LISTED", 2)
    assert len(answer_of(store, capsys, "ls")) == 3
    run(store, "ls")
    assert "\n1 more; --limit 0 shows all\n" in capsys.readouterr().out
    run(store, "ls", "--limit", "0")
    assert "more" not in capsys.readouterr().out
