"""The environment and the flags with which a worker process starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from inductor_plugin.worker import interpreter
from inductor_plugin.worker.interpreter import isolation, variables_of
from inductor_plugin.worker.jobs import WorkerSettings

FLAGS = {"isolated": 0, "ignore_environment": 0, "no_user_site": 0, "no_site": 0}


@pytest.mark.parametrize(
    ("flags", "passed"),
    [
        ({}, []),
        ({"isolated": 1, "ignore_environment": 1, "no_user_site": 1}, ["-I"]),
        ({"isolated": 1, "no_site": 1}, ["-I", "-S"]),
        ({"ignore_environment": 1, "no_site": 1}, ["-E", "-S"]),
        ({"no_user_site": 1}, ["-s"]),
        ({"safe_path": True}, ["-P"]),
    ],
)
def test_a_worker_is_as_isolated_as_its_parent(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, int], passed: list[str]
) -> None:
    monkeypatch.setattr(interpreter, "sys", SimpleNamespace(flags=SimpleNamespace(**FLAGS | flags)))
    assert isolation() == passed


def test_a_compile_worker_sees_no_gpu_and_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("CUDA_VISIBLE_DEVICES", "3"),
        ("OMP_PROC_BIND", "close"),
        ("LC_ALL", "de_DE.UTF-8"),
        ("INDUCTOR_PLUGIN_ENABLE", "1"),
    ):
        monkeypatch.setenv(name, value)
    compiles = variables_of(WorkerSettings((), "compile", cache_dir="/cache"))
    assert (compiles["CUDA_VISIBLE_DEVICES"], compiles["HIP_VISIBLE_DEVICES"]) == ("", "")
    assert "OMP_PROC_BIND" not in compiles
    assert compiles["LC_ALL"] == "C.UTF-8"  # what the compiler says is read
    assert compiles["TORCHINDUCTOR_CACHE_DIR"] == "/cache"
    measures = variables_of(WorkerSettings((), "bench"))
    assert measures["CUDA_VISIBLE_DEVICES"] == "3"
    assert measures["OMP_PROC_BIND"] == "close"
    assert measures["LC_ALL"] == "de_DE.UTF-8"
    assert [each["INDUCTOR_PLUGIN_ENABLE"] for each in (compiles, measures)] == ["0", "0"]
