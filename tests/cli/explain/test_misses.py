"""``explain --last``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cli import main
from tests.support.cli.committed import hold

MISS = {
    "op": "mm",
    "digest": "ab" * 32,
    "describe": "mm(2x3, 3x4)",
    "environment": "e",
    "reason": "no record; the nearest differs in size: 1 -> 2",
}


def test_the_last_misses_are_told_with_their_reasons(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_store(cache_dir).put_misses(
        {"pid": 7, "time": 1.0, "program": "train.py", "policy": "tune", "misses": [MISS]}
    )
    assert main(["explain", "--last", "--cache-dir", str(cache_dir)]) == 0
    head, problem, reason = capsys.readouterr().out.splitlines()
    assert head.startswith("1 miss of process 7 (train.py), ")
    assert problem == "mm(2x3, 3x4)   mm, key abababababab"
    assert reason.strip() == MISS["reason"]
    assert main(["explain", "--last", "--json", "--cache-dir", str(cache_dir)]) == 0
    said = json.loads(capsys.readouterr().out)
    hold("explain_last", said)
    assert said["misses"] == [MISS]


def test_a_miss_forges_no_line(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = {name: f"{text}\x1b[2J\nFAKE" for name, text in MISS.items()}
    open_store(cache_dir).put_misses(
        {"pid": 7, "time": 1.0, "program": "x\nFAKE", "policy": "p\nFAKE", "misses": [odd]}
    )
    assert main(["explain", "--last", "--cache-dir", str(cache_dir)]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 3
    assert "\x1b" not in said


def test_without_misses_it_says_so(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(cache_dir)
    assert main(["explain", "--last", "--cache-dir", str(cache_dir)]) == 2
    assert "no process had a miss" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["explain"], ["explain", "key", "--last"]])
def test_a_key_or_last_is_needed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "--last" in capsys.readouterr().err
