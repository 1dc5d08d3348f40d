"""Which traces ``explain --profile`` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cli import main
from inductor_plugin.cli.explain import profile


@pytest.mark.parametrize(("spare", "status"), [(0, 0), (-1, 2)])
def test_a_trace_is_read_up_to_a_limit(
    spare: int,
    status: int,
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, text = tmp_path / "trace.json", '{"traceEvents": []}'
    file.write_text(text, encoding="utf-8")
    open_store(cache_dir)
    monkeypatch.setattr(profile, "_MOST_BYTES", len(text) + spare)
    assert main(["explain", "--profile", str(file), "--cache-dir", str(cache_dir)]) == status
    assert ("it has more than 18 bytes; profile fewer steps" in capsys.readouterr().err) == (
        spare < 0
    )
