"""Whatever lies in the file of misses: `explain --last` says what it can, or that there is nothing."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, strategies

from inductor_plugin.cache import open_store
from inductor_plugin.cli import main
from tests.support.cache.fuzz import Attack, attacks, cases


def explained(harm: Callable[[Path], None], *flags: str) -> tuple[int, str, str]:
    """Return the status and the words of `explain --last`, with the file of misses harmed."""
    names = "op", "digest", "describe", "environment", "reason"
    near: dict[str, Any] = {"environment": "e", "digest": "d", "describe": "mm(2x3)"}
    near["differences"] = [{"field": "size", "before": 1, "after": 2}]
    row = {**dict.fromkeys(names, "mm"), "unseen": ["a"], "near": near}
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        store.put_misses({"pid": 1, "time": 1.0, "program": "p", "policy": "tune", "misses": [row]})
        harm(store.layout.misses)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["explain", "--last", "--cache-dir", folder, *flags])
    return status, out.getvalue(), err.getvalue()


def survives(attack: Attack, *flags: str) -> None:
    status, out, err = explained(attack[1], *flags)
    assert status in (0, 2), attack[0]
    assert "Traceback" not in err
    assert bool(err) == (status == 2), attack[0]
    if status == 0 and flags:
        json.loads(out)


def test_a_sound_file_is_explained() -> None:
    status, out, _ = explained(lambda path: None)
    assert status == 0
    assert "mm" in out


FLAGS = strategies.sampled_from([(), ("--json",)])


@cases(60)
@given(attacks(), FLAGS)
def test_no_file_of_misses_does_harm(attack: Attack, flags: tuple[str, ...]) -> None:
    survives(attack, *flags)


@cases(500)
@given(attacks(), FLAGS)
def test_no_file_of_misses_does_harm_at_length(attack: Attack, flags: tuple[str, ...]) -> None:
    survives(attack, *flags)
