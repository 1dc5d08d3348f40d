"""Measured processes find the plugin's bytecode, as in an installed package, and inherit none of its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import child


def test_a_timed_process_writes_and_finds_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in child.PLUGIN:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("A = 1")
    monkeypatch.setattr(child, "REPOSITORY", tmp_path)
    monkeypatch.setattr(child, "_write_bytecode", child._write_bytecode.__wrapped__)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("OTHER", "kept")
    monkeypatch.setenv("INDUCTOR_PLUGIN_ENABLE", "1")
    environment = child.child_environment(INDUCTOR_PLUGIN_CACHE_DIR="/cache")
    assert not {"PYTHONDONTWRITEBYTECODE", "INDUCTOR_PLUGIN_ENABLE"} & environment.keys()
    assert (environment["INDUCTOR_PLUGIN_CACHE_DIR"], environment["OTHER"]) == ("/cache", "kept")
    assert len(list(tmp_path.glob("*/__pycache__/module.*.pyc"))) == len(child.PLUGIN)
