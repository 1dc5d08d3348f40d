"""Runs C functions instead of compiled kernels: operators find and start them on the host."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import KernelKey, Store, open_store
from inductor_plugin.ops import launch


def library(folder: Path, text: str, *flags: str) -> Path:
    """Return the shared library of a C++ text, built in a folder."""
    source, built = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(text, encoding="utf-8")
    command = ["g++", "-shared", "-fPIC", "-O1", *flags, "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    return built


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Start kernels on the host, and look for their libraries only in caches that a test adds.

    Args:
        monkeypatch: Undoes the patches.
        folder: Path of the default cache, which does not exist.
    """

    def started(abi: Any, function: Any, call: Any, device: torch.device) -> None:
        assert device.type == "cpu"
        abi.run(function, call, 0)

    def processors(device: torch.device) -> int:
        return 132

    monkeypatch.setattr(launch, "_launch", started)
    monkeypatch.setattr(launch, "multiprocessors", processors)
    monkeypatch.setattr(launch, "multiprocessors_now", processors)
    monkeypatch.setattr(launch, "_folders", [])
    monkeypatch.setattr(launch, "_stores", dict[Path, Store]())
    monkeypatch.setattr(launch, "_warned", set[str]())
    monkeypatch.setattr(launch, "_retry_at", dict[str, float]())
    monkeypatch.setattr(launch, "default_cache_dir", lambda: folder)
    launch._kernel_or_error.cache_clear()


def stored(cache: Path, library: Path, symbol: str) -> str:
    """Put a library into a cache and return the name of one of its kernels there."""
    return stored_in(open_store(cache), library, symbol)


def stored_in(store: Store, library: Path, symbol: str) -> str:
    """Put a library into an opened cache; the rest as `stored`."""
    key = KernelKey("a template", "text", symbol, "sm_90a", "nvcc 13", "")
    store.put_kernel(key, {launch.LIBRARY_FILE: library})
    return f"{symbol}@{key.digest}"
