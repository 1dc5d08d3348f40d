from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from inductor_plugin.autoload import autoload
from tests.support.repository import REPOSITORY

MEASURE = """
import logging, sys, time, typing, importlib
costs = []
for _ in range(5):
    for name in [one for one in sys.modules if one.startswith("inductor_plugin")]:
        del sys.modules[name]
    start = time.perf_counter()
    import inductor_plugin.autoload
    inductor_plugin.autoload.autoload()
    costs.append((time.perf_counter() - start) * 1e3)
loaded = sorted(one for one in sys.modules if one.startswith("inductor_plugin"))
print(min(costs), *loaded)
"""
LIMIT_MS = 2.0
BOGUS = """
import importlib, importlib.util, inspect, os, sys
import torch
assert "torch._inductor.compile_fx" not in sys.modules
assert importlib.util.find_spec("torch._inductor.compile_fx") is not None
for _ in range(2):
    module = importlib.import_module("torch._inductor.compile_fx")
stock = inspect.unwrap(module.compile_fx)
compiled = torch.compile(lambda x: x + 1)
for _ in range(2):
    try:
        compiled(torch.ones(3))
    except Exception as error:
        print(error.inner_exception)
print(module.compile_fx is stock)
del os.environ["INDUCTOR_PLUGIN_BOGUS"]
compiled(torch.ones(3))
print(module.compile_fx.__code__.co_filename)
import inductor_plugin
inductor_plugin.disable()
print(inspect.unwrap(module.compile_fx) is stock, module.compile_fx.__code__.co_filename)
"""


def fake_activation(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> list[str]:
    """Put an activation in place that raises, or notes that it was called."""
    calls: list[str] = []

    def enable_deferred() -> None:
        calls.append("enabled")
        if error is not None:
            raise error

    module = ModuleType("inductor_plugin.activation")
    module.enable_deferred = enable_deferred  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "inductor_plugin.activation", module)
    return calls


def test_it_costs_little_and_loads_nothing_when_unset():
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], check=True, timeout=60, capture_output=True, text=True
    )
    cost_ms, *loaded = done.stdout.split()
    assert float(cost_ms) < LIMIT_MS
    assert loaded == ["inductor_plugin", "inductor_plugin.autoload"]


@pytest.mark.parametrize("text", ["", "0", "off", "false"])
def test_it_does_nothing_when_switched_off(monkeypatch: pytest.MonkeyPatch, text: str):
    calls = fake_activation(monkeypatch, None)
    monkeypatch.setenv("INDUCTOR_PLUGIN_ENABLE", text)
    autoload()
    assert calls == []


def test_it_enables_when_switched_on(monkeypatch: pytest.MonkeyPatch):
    calls = fake_activation(monkeypatch, None)
    monkeypatch.setenv("INDUCTOR_PLUGIN_ENABLE", "1")
    autoload()
    assert calls == ["enabled"]


def test_a_failure_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    fake_activation(monkeypatch, RuntimeError("the hook is gone"))
    monkeypatch.setenv("INDUCTOR_PLUGIN_ENABLE", "1")
    with caplog.at_level(logging.WARNING):
        autoload()
    (record,) = caplog.records
    assert "stays off: RuntimeError: the hook is gone" in record.getMessage()


def test_import_torch_survives_a_bad_switch():
    environment = {**os.environ, "INDUCTOR_PLUGIN_ENABLE": "maybe"}
    code = "import torch, sys; print('inductor_plugin.autoload' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env=environment,
        timeout=120,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True", (
        "torch does not know the entry point; run `pip install -e .`"
    )
    assert done.stderr.count("stays off") == 1


def test_a_bad_option_is_an_error_at_every_compile_and_not_at_the_import(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", BOGUS],
        env={
            **os.environ,
            "INDUCTOR_PLUGIN_ENABLE": "1",
            "INDUCTOR_PLUGIN_CACHE_DIR": str(tmp_path / "cache"),
            "INDUCTOR_PLUGIN_BOGUS": "17",
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
        },
        timeout=300,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    first, second, refusing, corrected, disabled = done.stdout.splitlines()
    assert first == second
    assert first.startswith("unknown variable INDUCTOR_PLUGIN_BOGUS='17'; ")
    assert "INDUCTOR_PLUGIN_POLICY" in first
    assert refusing == "False"
    assert Path(corrected).name == "hooks.py"
    assert disabled.startswith("True ")
    assert Path(disabled.partition(" ")[2]).name == "compile_fx.py"
