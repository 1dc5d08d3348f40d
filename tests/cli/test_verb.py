from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from inductor_plugin.cache import Store
from inductor_plugin.cli import main
from inductor_plugin.cli.verb import seconds, size_bytes
from tests.support.command import run


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


@pytest.mark.parametrize("text", ["", "-1", "x", "1q", "1e400", "nan"])
def test_what_is_no_size_or_span_is_refused(text: str):
    for parse in (size_bytes, seconds):
        with pytest.raises(ArgumentTypeError, match="write"):
            parse(text)


def test_a_cache_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "--cache-dir", str(tmp_path / "none")]) == 2
    assert "there is no cache at" in capsys.readouterr().err


def test_a_refused_directory_is_one_line_and_2(store: Store, capsys: pytest.CaptureFixture[str]):
    store.root.chmod(0o777)
    run(store, "stats", status=2)
    assert "chmod go-w" in capsys.readouterr().err
