# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

import pytest

from inductor_plugin.cache import Store
from inductor_plugin.cli import VERBS, main
from inductor_plugin.cli.verb import (
    check_source,
    check_target,
    count,
    interval,
    seconds,
    size_bytes,
)
from inductor_plugin.errors import CacheError
from tests.support.cli.command import run
from tests.support.processes.user import leave_without_folder


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500", 500),
        ("20k", 20_000),
        ("1.5GB", 1_500_000_000),
        ("3 m", 3_000_000),
        ("1.5GiB", 3 << 29),
        ("2KiB", 2048),
    ],
)
def test_sizes(text: str, size: int):
    assert size_bytes(text) == size


@pytest.mark.parametrize(("text", "span"), [("90", 90), ("12h", 43200), ("30d", 2592000)])
def test_spans(text: str, span: float):
    assert seconds(text) == span


ODD_NUMBERS = ["", "-1", "x", "1q", "1e400", "nan", "inf", "9" * 400, "9" * 5000]


@pytest.mark.parametrize("text", ODD_NUMBERS, ids=lambda text: str(text)[:5])
def test_what_is_no_count_size_or_span_is_refused(text: str):
    for parse in (count, size_bytes, seconds):
        with pytest.raises(ArgumentTypeError, match="write"):
            parse(text)


@pytest.mark.parametrize(("text", "span"), [("0.5", 0.5), ("52w", 52 * 604800)])
def test_intervals(text: str, span: float):
    assert interval(text) == span


@pytest.mark.parametrize("text", ["0", "0s", "53w", "20000w", "9" * 18])
def test_an_interval_is_longer_than_none_and_not_longer_than_a_year(text: str):
    with pytest.raises(ArgumentTypeError, match="write a time longer than 0, and of 52w at most"):
        interval(text)


@pytest.mark.parametrize(("text", "number"), [("0", 0), (" 7 ", 7), ("50", 50)])
def test_counts(text: str, number: int):
    assert count(text) == number


def number_flags() -> list[tuple[str, str]]:
    """Return the verbs' flags that take a number: those with a type that is not a path."""
    parser = ArgumentParser()
    verbs = parser.add_subparsers()
    flags: list[tuple[str, str]] = []
    for verb in VERBS:
        subparser = verbs.add_parser(verb.name)
        verb.add_arguments(subparser)
        flags += [
            (verb.name, action.option_strings[-1])
            for action in subparser._actions
            if action.type not in (None, Path)
        ]
    return flags


def test_every_number_is_a_count_a_size_or_a_span():
    assert set(number_flags()) == {
        ("stats", "--watch"),
        ("ls", "--limit"),
        ("prune", "--max-bytes"),
        ("prune", "--older-than"),
        ("bench", "--seconds"),
        ("precompile", "--max-candidates"),
    }


@pytest.mark.parametrize(("verb", "flag"), number_flags())
@pytest.mark.parametrize("text", ["-5", "-1.5", "nan", "inf", "x", "9" * 400], ids=lambda t: t[:4])
def test_a_flag_refuses_a_number_below_zero_or_without_end(
    verb: str, flag: str, text: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main([verb, *(["key"] if verb == "bench" else []), flag, text])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {flag}: " in said
    assert "; write " in said


def test_a_cache_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "--cache-dir", str(tmp_path / "none")]) == 2
    assert "there is no cache at" in capsys.readouterr().err


def test_a_refused_directory_is_one_line_and_2(store: Store, capsys: pytest.CaptureFixture[str]):
    store.root.chmod(0o777)
    run(store, "stats", status=2)
    assert "chmod go-w" in capsys.readouterr().err


def test_the_folders_above_the_default_cache_are_made_and_above_a_named_one_not(tmp_path: Path):
    path = tmp_path / "no" / "cache"
    assert check_target(path, named=False)
    with pytest.raises(CacheError, match="there is no folder"):
        check_target(path)
    assert not path.parent.exists()
    path.mkdir(parents=True)
    assert check_target(path)  # it is empty
    (path / "schema.json").touch()
    assert not check_target(path)


@pytest.mark.parametrize("mark", ["schema.json", "records", "kernels", "packs", "quarantine"])
def test_a_folder_with_one_part_of_a_cache_is_one(mark: str, tmp_path: Path):
    with pytest.raises(CacheError, match="is no cache"):
        check_source(tmp_path)
    (tmp_path / mark).mkdir()
    check_source(tmp_path)


NOBODY = "~no-such-user/x"
CALLS = (
    ("stats", "--cache-dir", NOBODY),
    ("demo", "--cache-dir", NOBODY),
    ("doctor", "--cache-dir", NOBODY),
    ("ls", "--cache-dir", NOBODY),
    ("verify", "--cache-dir", NOBODY),
    ("pin", NOBODY),
    ("check", NOBODY),
    ("export", NOBODY),
    ("report", NOBODY),
    ("report", "out.html", NOBODY),
    ("report", "out.html", "--trace", NOBODY),
    ("diff", NOBODY, "x"),
    ("merge", NOBODY, "x"),
    ("merge", "x", NOBODY),
    ("explain", "--profile", NOBODY),
    ("key", "new", NOBODY),
    ("key", "show", NOBODY),
)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_a_path_below_the_folder_of_a_user_who_is_not_known_is_one_line_and_2(
    call: tuple[str, ...],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(store.root))
    assert main(call) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f" is '{NOBODY}', but this machine knows no user 'no-such-user'; write " in line


@pytest.mark.parametrize(
    "call", [("stats",), ("ls",), ("verify",), ("prune",), ("pin", "pins.json")], ids=" ".join
)
def test_where_nobody_has_a_folder_a_verb_says_what_to_set(
    call: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    leave_without_folder(monkeypatch)
    assert main(call) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "HOME is not set" in line
    assert "; set HOME, or INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own" in line


@pytest.mark.parametrize("name", ["CACHE_READ", "SIGNING_KEY", "TRUSTED_KEYS"])
def test_what_only_some_verbs_read_does_not_keep_others_from_working(
    name: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv(f"INDUCTOR_PLUGIN_{name}", NOBODY)
    run(store, "ls")
    assert "mm(" in capsys.readouterr().out


@pytest.mark.parametrize("named", [True, False])
def test_doctor_says_which_folder_is_not_known(
    named: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if named:
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", NOBODY)
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_READ", NOBODY)
    else:
        leave_without_folder(monkeypatch)
    assert main(["doctor", "--json"]) == 1
    findings = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    for name in ("options", "cache", "cache_read") if named else ("options", "cache"):
        assert findings[name]["state"] == "broken"
        assert findings[name]["remedy"] not in ("", findings[name]["detail"])
    for name in ("options", "cache_read") if named else ("options",):
        assert ("no user" if named else "HOME is not set") in findings[name]["detail"]
    assert "the finding `options` says why" in findings["cache"]["detail"]
