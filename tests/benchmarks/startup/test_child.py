"""Processes that are timed find the plugin's bytecode, as in an installed package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import inductor_plugin.template
from benchmarks.harness.child import child_environment


def test_a_timed_process_keeps_and_finds_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = child_environment(INDUCTOR_PLUGIN_CACHE_DIR="/cache")
    program = (
        "import os, sys; print(sys.dont_write_bytecode, os.environ['INDUCTOR_PLUGIN_CACHE_DIR'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "/cache"]
    assert Path(importlib.util.cache_from_source(inductor_plugin.template.__file__)).is_file()
