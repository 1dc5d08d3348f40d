"""Pin files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.errors import OptionError
from inductor_plugin.tuning.pins.document import dump, parse, read_file
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import Pin, PinFile, pin_file, tried
from inductor_plugin.tuning.pins.replay import read_pins

PIN = {"environment": "e", "op": "mm", "digest": "d", "winner": "triton_mm-12"}


def written(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "pins.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_a_pin_is_found_by_environment_operator_and_problem(tmp_path: Path) -> None:
    pins = read_pins(written(tmp_path, {"pins": [PIN]}))
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
    "content", [[], {}, {"pins": 3}, {"pins": [{**PIN, "op": None}, {"op": "mm"}]}, "text"]
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
    written(tmp_path, {"pins": [PIN]})
    assert read_pins("~/pins.json").winner("e", "mm", "d") == "triton_mm-12"


@pytest.mark.parametrize(
    ("content", "what"),
    [({}, "it has no list 'pins'"), ({"pins": [{"op": "mm"}]}, "its environment is missing")],
)
def test_what_a_pin_file_lacks_is_named(tmp_path: Path, content: Any, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        read_pins(written(tmp_path, content))


CPU = {"device": {"type": "cpu", "name": "Z80", "threads": 2}, "software": {"torch": "2.14.1"}}
FULL = Pin(
    "e",
    *("mm", "d", "mm(8x8) fp32", "t.x-1", "t", 0.5, 9, "mm-1", 1.0, "2.000x faster"),
    identities=("module.T",),
)


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


OLDER = replace(FULL, op="bmm", identities=("module.T 1", "module.T 0"))
UNKNOWN = replace(FULL, op="addmm", identities=())


def test_only_where_pins_were_tuned_with_different_versions_of_a_template_they_name_their_own() -> (
    None
):
    """An earlier version takes each pin for being of any of them; a file of one says what each of its pins was tuned with."""
    mixed = PinFile({pin.place: pin for pin in (FULL, OLDER, UNKNOWN)}, {"e": CPU})
    text = dump(mixed)
    content = json.loads(text)
    assert content["templates"] == {"t": ["module.T", "module.T 0", "module.T 1"]}
    own = [row["identities"] for row in content["environments"][0]["pins"]]
    assert own == [[], ["module.T 0", "module.T 1"], ["module.T"]]
    assert parse(text) == mixed
    for row in content["environments"][0]["pins"]:
        del row["identities"]
    everyone = ("module.T", "module.T 0", "module.T 1")
    assert {pin.identities for pin in parse(json.dumps(content)).pins.values()} == {everyone}
    alike = PinFile({pin.place: replace(pin, identities=everyone) for pin in mixed.pins.values()})
    assert "identities" not in dump(alike)
    assert parse(dump(alike)) == alike


def test_fields_of_an_environment_that_are_named_like_those_of_the_file_read_as_they_were_written() -> (
    None
):
    odd = {**CPU, "name": "its own", "digest": {"a": 1}, "failed": None, "own": [1]}
    content = pin_file([FULL], {"e": odd})
    assert parse(dump(content)) == content
    assert "its own" in dump(content)


LIBRARY = replace(FULL, winner="mm-1", template="", winner_ms=1.0, samples=4, reason="calm")
ALL = PinFile(
    {FULL.place: FULL},
    {"e": CPU},
    {tried("e", "t.x-2", "d"): "wrong", tried("g", "t.x-1", "0123456789abcdef"): "raised"},
    {LIBRARY.place: (LIBRARY, replace(LIBRARY, winner="t.x-2"))},
)


def test_failures_and_decisions_that_are_not_used_read_as_they_were_written() -> None:
    assert parse(dump(ALL)) == ALL
    undecided = PinFile({}, {}, {FULL.tried: "wrong"}, {FULL.place: (FULL,)})
    assert parse(dump(undecided)) == undecided


def test_they_take_a_few_lines_that_can_be_read_in_an_order_of_their_own() -> None:
    text = dump(ALL)
    assert text.startswith('{\n  "format": 3,\n')
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index('"spare": [')
    row = [
        '"winner": "mm-1", "winner_ms": 1.0, "samples": 4,',
        '"library": "mm-1", "library_ms": 1.0,',
        '"reason": "calm",',
    ]
    assert lines[start + 1 : start + 5] == ['{"problem": "mm(8x8) fp32",', *row]
    assert lines[start + 11 : start + 15] == ["],", '"failed": {', '"t.x-2-d": "wrong"', "}"]
    assert '"t.x-1-0123456789ab": "raised"' in lines
    shuffled = replace(
        ALL,
        failed={run: ALL.failed[run] for run in reversed([*ALL.failed])},
        spare={place: pins[::-1] for place, pins in ALL.spare.items()},
    )
    assert dump(shuffled) == text


def test_a_file_without_them_is_of_format_2_and_has_the_text_of_earlier_versions() -> None:
    """So an earlier version reads it. It refuses any other, which it would merge without them."""
    assert dump(PinFile({FULL.place: FULL}, {"e": CPU})) == (
        '{\n  "format": 2,\n  "templates": {\n    "t": [\n      "module.T"\n    ]\n  },\n  "environments": [\n    {\n'
        '      "name": "Z80, 2 threads, torch 2.14.1",\n      "digest": "e",\n'
        '      "device": {"name": "Z80", "threads": 2, "type": "cpu"},\n      "software": {"torch": "2.14.1"},\n'
        '      "pins": [\n        {"problem": "mm(8x8) fp32",\n'
        '         "winner": "t.x-1", "template": "t", "winner_ms": 0.5, "samples": 9,\n'
        '         "library": "mm-1", "library_ms": 1.0,\n         "reason": "2.000x faster",\n'
        '         "op": "mm", "digest": "d"}\n      ]\n    }\n  ]\n}\n'
    )


def test_a_pin_whose_winner_the_file_itself_calls_failed_is_no_decision() -> None:
    """As after an edit by hand. Nothing takes its place: a replay runs the library kernel, until files are merged again."""
    text = dump(ALL).replace('"t.x-2-d": "wrong"', '"t.x-1-d": "wrong"')
    assert text != dump(ALL)
    edited = parse(text)
    assert edited.pins == {}
    assert [pin.winner for pin in edited.spare[FULL.place]] == ["mm-1", "t.x-1", "t.x-2"]
    assert merge([edited]).pins[FULL.place].winner in {"mm-1", "t.x-2"}
    other = json.loads(text)  # as after both sides of a conflict in git were taken
    other["environments"][0]["pins"] = []
    twice = json.loads(dump(PinFile({FULL.place: FULL})))
    twice["environments"] += other["environments"]
    for environments in (twice["environments"], twice["environments"][::-1]):
        assert parse(json.dumps({**twice, "environments": environments})).pins == {}


@pytest.mark.parametrize("backwards", [False, True])
def test_of_two_pins_of_a_problem_in_a_file_the_better_decides_with_a_warning_and_both_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, backwards: bool
) -> None:
    """As after both sides of a conflict in git were taken, in one environment or in two of its name."""
    fewer = replace(LIBRARY, samples=1)
    sides = [json.loads(dump(PinFile({pin.place: pin}, {"e": CPU}))) for pin in (FULL, fewer)]
    for side in sides:
        side["templates"] = sides[0]["templates"]
    (one_side, other_side) = sides[::-1] if backwards else sides
    apart = {**one_side, "environments": one_side["environments"] + other_side["environments"]}
    pins = [row for side in (one_side, other_side) for row in side["environments"][0]["pins"]]
    joined = {**one_side, "environments": [{**one_side["environments"][0], "pins": pins}]}
    for content in (apart, joined):
        assert parse(json.dumps(content)) == merge([parse(json.dumps(side)) for side in sides])
    file = read_file(Path(written(tmp_path, apart)))
    assert file.pins == {FULL.place: FULL}
    assert file.spare == {FULL.place: (fewer,)}
    (warning,) = (each.message for each in caplog.records)
    assert "decides 1 problems differently in two places, mm(8x8) fp32 for t.x-1 (9" in warning
    assert parse(dump(file)) == file


def test_two_pins_of_a_problem_and_a_winner_are_the_better_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    twice = {"format": 1, "pins": [PIN, {**PIN, "describe": "longer"}]}
    for rows in (twice["pins"], [PIN, PIN]):
        assert len(parse(json.dumps({"pins": rows})).pins) == 1
        assert parse(json.dumps({"pins": rows})).spare == {}
    read_file(Path(written(tmp_path, twice)))
    assert not caplog.records
    for rows in ([PIN, other := {**PIN, "winner": "mm"}], [PIN, other, {**PIN, "describe": "a"}]):
        ((place, decided),) = (two := parse(json.dumps({"pins": rows}))).pins.items()
        assert (decided.winner, [pin.winner for pin in two.spare[place]]) == (
            "triton_mm-12",
            ["mm"],
        )


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"failed": ["x"]}, r"its failed: \['x'\] is not an object"),
        ({"failed": {"x": 3}}, "its failed: 3 is not text"),
        ({"failed": {"x": "\ud800"}}, "its failed: .* is not text"),
        ({"failed": None}, "its failed: None is not an object"),
        ({"own": 3}, "its own: 3 is not an object"),
        ({"spare": [{**PIN, "identities": 3}]}, "its spare: its identities: 3 is not a list"),
        ({"spare": {}}, r"its spare: \{\} is not a list"),
        ({"spare": ["x"]}, "its spare: 'x' is not an object"),
        ({"spare": [{"op": "mm", "digest": "d"}]}, "its spare: its winner is missing"),
        ({"spare": [{**PIN, "samples": -1}]}, "its spare: its samples: -1 is not a whole number"),
    ],
)
def test_failures_and_unused_decisions_of_odd_types_are_named(
    tmp_path: Path, fields: Any, what: str
) -> None:
    rows: list[Any] = []
    content = {"format": 3, "environments": [{"digest": "e", "pins": rows, **fields}]}
    with pytest.raises(OptionError, match=f"not a pin file: its environments: {what}"):
        read_pins(written(tmp_path, content))


@pytest.mark.parametrize("number", [0, 4, 10**30, "2", None])
def test_another_format_is_refused(tmp_path: Path, number: Any) -> None:
    with pytest.raises(OptionError, match="not a pin file: its format"):
        read_pins(written(tmp_path, {"format": number, "environments": []}))
