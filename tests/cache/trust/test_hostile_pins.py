"""Pin files of an attacker: refused with their reason, and no code that they name or hold runs.

Each holds an expression, a module or a library that leaves a mark where it runs.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cli import pins
from inductor_plugin.tuning.pins.document import read_file
from inductor_plugin.tuning.pins.pin import Pin
from inductor_plugin.tuning.pins.replay import not_offered
from tests.support.cache.records import ENVIRONMENT, kernel_key
from tests.support.cli import command
from tests.support.trust.payload import marking_call, marking_module


@pytest.fixture(autouse=True)
def untouched(mark: Path) -> Iterator[None]:
    yield
    assert not mark.exists(), "code of the attacker ran"


class Runs:
    """Unpickling this opens a file for writing."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return open, (self.mark, "w")


def pin_text(call: str, number: int = 2, **fields: Any) -> bytes:
    row = {"op": "mm", "digest": "d", "winner": call, "problem": call, "reason": call, **fields}
    document = {"format": number, "environments": [{"digest": "e", "name": call, "pins": [row]}]}
    return json.dumps(document).encode()


def a_pickle(mark: Path) -> tuple[bytes, str]:
    return pickle.dumps(Runs(mark)), "codec can't decode"


def a_pickle_of_text(mark: Path) -> tuple[bytes, str]:
    return pickle.dumps(Runs(mark), protocol=0), "Expecting value"


def python(mark: Path) -> tuple[bytes, str]:
    return f"{marking_call(mark)}\n".encode(), "Expecting value"


def a_call_for_a_winner(mark: Path) -> tuple[bytes, str]:
    return pin_text(marking_call(mark), winner=[marking_call(mark)]), "winner"


def a_module_for_a_template(mark: Path) -> tuple[bytes, str]:
    return pin_text(marking_call(mark), template={"module": marking_call(mark)}), "template"


def no_time(mark: Path) -> tuple[bytes, str]:
    return pin_text(marking_call(mark), winner_ms=float("nan")), "NaN"


def a_number_that_is_read_as_infinity(mark: Path) -> tuple[bytes, str]:
    """It would be written as such, and the file could not be read any more."""
    text = pin_text(marking_call(mark), fields={"size": 1.5})
    return text.replace(b"1.5", b"1e999"), "'1e999'"


def less_than_no_samples(mark: Path) -> tuple[bytes, str]:
    return pin_text(marking_call(mark), samples=-1), "samples"


def in_an_environment(call: str, **fields: Any) -> bytes:
    environment: dict[str, Any] = {"digest": "e", "name": call, "pins": [], **fields}
    return json.dumps({"format": 3, "environments": [environment]}).encode()


def a_call_for_a_failure(mark: Path) -> tuple[bytes, str]:
    call = marking_call(mark)
    return in_an_environment(call, failed={"x-1-d": [call]}), "failed"


def a_call_for_an_unused_winner(mark: Path) -> tuple[bytes, str]:
    call = marking_call(mark)
    row = {"op": "mm", "digest": "d", "winner": [call]}
    return in_an_environment(call, spare=[row]), "spare: its winner"


def deep(mark: Path) -> tuple[bytes, str]:
    call = json.dumps(marking_call(mark)).encode()
    return b'{"reason": ' + call + b', "pins": ' + b"[" * 100_000, "nested too deeply"


def of_another_format(mark: Path) -> tuple[bytes, str]:
    return pin_text(marking_call(mark), 99), "its format is 99"


def no_list(mark: Path) -> tuple[bytes, str]:
    return json.dumps({"pins": marking_call(mark)}).encode(), "pins"


def a_list(mark: Path) -> tuple[bytes, str]:
    return json.dumps([marking_call(mark)]).encode(), "no list 'pins'"


CASES = [
    a_pickle, a_pickle_of_text, python, a_call_for_a_winner, a_module_for_a_template, no_time, deep,
    less_than_no_samples, a_number_that_is_read_as_infinity,
    of_another_format, no_list, a_list, a_call_for_a_failure, a_call_for_an_unused_winner,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_pin_file_that_is_none_is_refused_and_none_of_its_code_runs(
    case: Callable[[Path], tuple[bytes, str]], tmp_path: Path, mark: Path
) -> None:
    content, why = case(mark)
    assert str(mark).encode() in content
    file = tmp_path / "pins.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=why):
        read_file(file)


def test_a_pin_file_in_order_keeps_code_as_text(tmp_path: Path, mark: Path) -> None:
    file = tmp_path / "pins.json"
    file.write_bytes(pin_text(marking_call(mark)))
    (pin,) = read_file(file).pins.values()
    assert (pin.winner, pin.describe, pin.reason) == (marking_call(mark),) * 3


@pytest.fixture(params=["evil_module", "evil_module:Template", "{}/evil_module.py", "{}/evil.so"])
def template(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    mark: Path,
    payload: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Return what a pin names as its template: a module, or a file, that is there; fail if it has been imported."""
    marking_module(tmp_path, "evil_module", mark)
    (tmp_path / "evil.so").write_bytes(payload)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield request.param.format(tmp_path)
    assert "evil_module" not in sys.modules


def test_a_pin_imports_no_template_it_names(template: str, tmp_path: Path) -> None:
    winner = f"x@{tmp_path}/evil.so"
    pin = Pin("e", "mm", kernel_key().digest, "mm(8x8)", winner, template)
    assert "is not registered" in not_offered(pin)


def test_the_verb_that_checks_a_pin_file_imports_no_template_it_names(
    template: str,
    tmp_path: Path,
    mark: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pins, "environments_here", lambda: {"e": ENVIRONMENT})
    file, winner = tmp_path / "pins.json", f"x@{tmp_path}/evil.so"
    file.write_bytes(pin_text(marking_call(mark), winner=winner, template=template))
    store = open_store(tmp_path / "cache")
    said = command.answer_of(store, capsys, "check", file, status=1)
    (row,) = said["stale"]
    assert (row["describe"], row["pinned"]) == (marking_call(mark), winner)
    assert row["reason"] == f"template {template!r} is not registered"


@pytest.mark.parametrize("case", [a_pickle, python, a_module_for_a_template, of_another_format])
def test_the_verb_that_checks_a_pin_file_refuses_one_that_is_none(
    case: Callable[[Path], tuple[bytes, str]],
    tmp_path: Path,
    mark: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content, why = case(mark)
    file = tmp_path / "pins.json"
    file.write_bytes(content)
    command.run(open_store(tmp_path / "cache"), "check", file, status=2)
    said = capsys.readouterr().err
    assert f"{file} is not a pin file: " in said
    assert why in said


def test_a_pin_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pins.json")
    with pytest.raises(ValueError, match="a pipe or a device"):
        read_file(tmp_path / "pins.json")


def unpickled(folder: Path, mark: Path) -> None:
    pickle.loads(a_pickle(mark)[0]).close()


def unpickled_from_text(folder: Path, mark: Path) -> None:
    pickle.loads(a_pickle_of_text(mark)[0]).close()


def evaluated(folder: Path, mark: Path) -> None:
    eval(marking_call(mark))


def imported(folder: Path, mark: Path) -> None:
    marking_module(folder, "evil_module_that_runs", mark)
    importlib.import_module("evil_module_that_runs")
    del sys.modules["evil_module_that_runs"]


@pytest.mark.parametrize("run", [unpickled, unpickled_from_text, evaluated, imported])
def test_what_these_files_hold_leaves_its_mark_where_it_runs(
    run: Callable[[Path, Path], None], tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    run(tmp_path, mark)
    assert mark.exists()
    mark.unlink()
