from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.cli import listing, main
from inductor_plugin.cli.output.prometheus import metrics
from inductor_plugin.inductor.allowance import account_of
from tests.support.cli.command import answer_of, filled, run
from tests.support.cli.committed import hold_answer

LINE = re.compile(
    r'inductor_plugin_cache_(\w+)\{cache_dir="((?:[^"\\\n]|\\.)*)"(?:,environment="(\w+)")?\} (\S+)'
)


@pytest.fixture
def store(cache_dir: Path) -> Store:
    return filled(cache_dir)


def values_in(text: str) -> dict[str, float]:
    """Return the value of each metric, after a look at its help and its type."""
    values: dict[str, float] = {}
    seen: set[str] = set()
    before, *groups = re.split(r"^(?=# HELP )", text, flags=re.MULTILINE)
    assert before == ""
    for about, kind, *lines in map(str.splitlines, groups):
        name = kind.split()[2]
        short = name.removeprefix("inductor_plugin_cache_")
        assert name not in seen
        assert about.startswith(f"# HELP {name} ")
        assert re.fullmatch(f"# TYPE {name} (counter|gauge)", kind)
        assert kind.endswith("counter") == short.endswith("_total")
        assert lines
        seen.add(name)
        for line in lines:
            match = LINE.fullmatch(line)
            assert match is not None, line
            assert match[1] == short
            values[short + (f" {match[3]}" if match[3] else "")] = float(match[4])
    return values


def test_each_metric_has_its_help_its_type_and_the_number_of_stats(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = answer_of(store, capsys, "stats")
    run(store, "stats", "--prometheus")
    values = values_in(capsys.readouterr().out)
    assert values["hits_total"] == fields["hits"] == 4
    assert values["misses_total"] == 2
    assert values["records"] == 3
    assert values["size_bytes"] == fields["bytes"]


def test_every_number_of_stats_is_a_metric_with_a_remote_a_second_cache_and_allowances_too(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_store(tmp_path / "second")
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_READ", str(tmp_path / "second"))
    names = list(vars(Amounts()))
    amounts = Amounts(**{name: 1500 + place for place, name in enumerate(names)})
    store.add_counts(**amounts.counters(), corrupt=1)
    saved = {account_of(letter * 64): ms for letter, ms in {"a": 1500, "b": -250}.items()}
    store.add_counts(**saved)
    fields = answer_of(store, capsys, "stats")
    assert {f"remote_{name}" for name in names} <= fields.keys()
    run(store, "stats", "--prometheus")
    values = values_in(capsys.readouterr().out)
    assert values["remote_hits_total"] == fields["remote_hits"] == 1501
    assert values["remote_saved_seconds_total"] == fields["remote_saved_ms"] / 1000
    assert values["read_records"] == 0
    assert saved.items() <= fields.items()
    assert values[f"graph_allowance_seconds {'a' * 12}"] == 1.5
    assert values[f"graph_allowance_seconds {'b' * 12}"] == -0.25
    # The rate is for Prometheus to compute, the others say how `stats` looked.
    apart = {"hit_rate", "looked", "locks"}
    numbers = {n for n, value in fields.items() if isinstance(value, int | float)}
    assert len(values) == len(numbers - apart)


def test_no_counter_falls_when_damage_is_repaired(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    next(iter(store.record_paths())).write_bytes(b"damaged")
    store.add_counts(corrupt=2)
    seen: list[dict[str, float]] = []
    for verb in (("stats", "--prometheus"), ("verify", "--repair"), ("stats", "--prometheus")):
        main([*verb, "--cache-dir", str(store.root)])
        said = capsys.readouterr().out
        seen += [values_in(said)] if "--prometheus" in verb else []
    assert [(each["damaged_removed_total"], each["damaged"]) for each in seen] == [(2, 1), (2, 0)]


def test_a_directory_whose_name_is_no_text_is_a_label_in_utf_8() -> None:
    text = metrics({"cache_dir": os.fsdecode(b"/c/\xff"), "hits": 1})
    match = LINE.fullmatch(text.encode().decode().splitlines()[2])
    assert match is not None
    assert match[2] == r"/c/\\udcff"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--prometheus", "--json"), "--prometheus is no JSON"),
        (("--zero", "--watch"), "--zero shows no figures"),
        (("--zero", "--prometheus"), "--zero shows no figures"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: tuple[str, str], why: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", "--cache-dir", str(store.root), *options]) == 2
    said = capsys.readouterr()
    assert (said.out, why in said.err) == ("", True)
    assert store.counters()["hits"] == 4


def test_a_directory_may_have_any_name() -> None:
    text = metrics({"cache_dir": 'a"b\\c\nd', "hits": 1, "records": None})
    assert text.count("\n") == 3
    match = LINE.fullmatch(text.splitlines()[2])
    assert match is not None
    assert match[2] == r"a\"b\\c\nd"


def test_a_path_that_a_terminal_would_obey_is_shown_by_its_codes() -> None:
    text = metrics({"cache_dir": "a\rb\x1b[2J\u202e", "hits": 1})
    assert r'{cache_dir="a\\rb\\x1b[2J\\u202e"} 1' in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("as_json", [True, False])
def test_stats_are_shown_again_until_ctrl_c(
    as_json: bool, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        store.add_counts(hits=1)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(listing.time, "sleep", sleep)
    options = ["--json"] if as_json else []
    assert main(["stats", "--cache-dir", str(store.root), "--watch", "5s", *options]) == 130
    said = capsys.readouterr().out
    assert waits == [5.0] * 3
    assert "\x1b" not in said  # this is no terminal
    if as_json:
        rows: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
        assert [row["hits"] for row in rows] == [4, 5, 6]
        for row in rows:
            hold_answer(["stats"], row)
    else:
        assert re.findall(r"Hits: +(\d+) of", said) == ["4", "5", "6"]


@pytest.mark.parametrize("time", ["0", "x", "-1", "20000w", "53w"])
def test_a_time_that_is_no_interval_is_refused(
    time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stats", "--watch", time])
    assert ended.value.code == 2
    assert "--watch" in capsys.readouterr().err
