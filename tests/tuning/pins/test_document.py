"""Pin files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.errors import OptionError
from inductor_plugin.tuning.pins.document import dump, parse
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import Pin, pin_file
from inductor_plugin.tuning.pins.replay import read_pins

ONE = {"environment": "e", "op": "mm", "digest": "d", "winner": "triton_mm-12"}


def written(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "pins.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_a_pin_is_found_by_environment_operator_and_problem(tmp_path: Path) -> None:
    pins = read_pins(written(tmp_path, {"pins": [ONE]}))
    assert pins.winner("e", "mm", "d") == "triton_mm-12"
    assert pins.winner("other", "mm", "d") is None
    assert pins.winner("e", "bmm", "d") is None
    assert pins.winner("e", "mm", "other") is None


def test_an_empty_pin_file_pins_nothing(tmp_path: Path) -> None:
    assert read_pins(written(tmp_path, {"pins": []})).pins == {}


def test_a_missing_file_is_an_error_that_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="inductor-plugin pin FILE"):
        read_pins(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    "content", [[], {}, {"pins": 3}, {"pins": [{**ONE, "op": None}, {"op": "mm"}]}, "text"]
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(OptionError, match="not a pin file"):
        read_pins(written(tmp_path, content))


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(OptionError, match="not a pin file"):
        read_pins(str(path))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"pins": ' + "[" * 900 + "]" * 900 + "}", '{"pins": [{"op": ["x"]}]}']
)
def test_a_file_that_is_nested_deeply_or_of_odd_types_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pins.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match="not a pin file"):
        read_pins(str(path))


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match="not a file"):
        read_pins(str(tmp_path / "pipe"))


def test_a_file_that_cannot_be_read_is_an_error_of_the_option(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_pins(str(tmp_path))


def test_the_users_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, {"pins": [ONE]})
    assert read_pins("~/pins.json").winner("e", "mm", "d") == "triton_mm-12"


@pytest.mark.parametrize(
    ("content", "what"),
    [({}, "it has no list 'pins'"), ({"pins": [{"op": "mm"}]}, "its environment is missing")],
)
def test_what_a_pin_file_lacks_is_named(tmp_path: Path, content: Any, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        read_pins(written(tmp_path, content))


CPU = {"device": {"type": "cpu", "name": "Z80", "threads": 2}, "software": {"torch": "2.14.1"}}
FULL = Pin("e", "mm", "d", "mm(8x8) fp32", "t.x-1", "t", 0.5, 9, "mm-1", 1.0, "2.000x faster")


def test_a_file_reads_as_it_was_written() -> None:
    bare = Pin("f", "bmm", "d2", "bmm(2x8x8)", "bmm-1")
    content = pin_file([FULL, bare], {"e": CPU, "f": None}, [("t", "module.T", "3")])
    assert parse(dump(content)) == content


def test_equal_files_are_equal_texts_whatever_their_order() -> None:
    other = replace(FULL, digest="a", describe="mm(1x1)")
    texts = {dump(pin_file(order, {"e": CPU})) for order in ([FULL, other], [other, FULL])}
    assert len(texts) == 1


def test_a_merge_changes_no_line_of_a_recorded_file() -> None:
    """The fields of its environment and of its problems are in the order in which the compile has found them."""
    winner = replace(FULL, fields={"op": "mm", "inputs": [{"size": [8, 8], "dtype": "float32"}]})
    environment = {"software": {"torch": "2.14.1", "cuda": "13.0"}, "device": {"threads": 2}}
    text = dump(pin_file([winner], {"e": environment}, [("t", "module.T", "3")]))
    assert dump(merge([parse(text), parse(text)])) == text
    swapped = {"device": {"threads": 2}, "software": {"cuda": "13.0", "torch": "2.14.1"}}
    other = replace(winner, fields={name: winner.fields[name] for name in ("inputs", "op")})
    assert dump(pin_file([other], {"e": swapped}, [("t", "module.T", "3")])) == text


def test_a_problem_takes_a_few_lines_that_can_be_read() -> None:
    text = dump(pin_file([FULL], {"e": CPU}, [("t", "module.T", "")]))
    assert '"name": "Z80, 2 threads, torch 2.14.1"' in text
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index('{"problem": "mm(8x8) fp32",')
    assert lines[start + 1 : start + 5] == [
        '"winner": "t.x-1", "template": "t", "winner_ms": 0.5, "samples": 9,',
        '"library": "mm-1", "library_ms": 1.0,',
        '"reason": "2.000x faster",',
        '"op": "mm", "digest": "d"}',
    ]


@pytest.mark.parametrize("number", [0, 3, 10**30, "2", None])
def test_another_format_is_refused(tmp_path: Path, number: Any) -> None:
    with pytest.raises(OptionError, match="not a pin file: its format"):
        read_pins(written(tmp_path, {"format": number, "environments": []}))
