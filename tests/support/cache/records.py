"""Records, kernels and keys that the tests of the cache share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import (
    Decision,
    KernelEntry,
    KernelKey,
    Measured,
    Record,
    Store,
    digest_of,
)

ENVIRONMENT = {"device": {"name": "cpu"}, "software": {"torch": "2.14.1"}}


def kernel_key(name: str = "k") -> KernelKey:
    return KernelKey("gemm", name, "64x64", "x86_64", "g++ 12", "-O3")


def put_library(store: Store) -> KernelEntry:
    """Publish a kernel of two files."""
    files = {"kernel.so": b"library", "source.cpp": b"int f();"}
    return store.put_kernel(kernel_key(), files)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file belong to a user who is neither this one nor root."""
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)


def measured(candidate: str, median_ms: float | None = 1.0, **fields: Any) -> Measured:
    values: dict[str, Any] = {
        "candidate": candidate,
        "name": candidate,
        "kind": "cpp",
        "description": "block_m=32",
        "status": "ok",
        "reason": "",
        "samples_ms": () if median_ms is None else (median_ms, median_ms + 0.5),
        "median_ms": median_ms,
        "spread_ms": None if median_ms is None else 0.1,
        "error": None,
        "compile_s": 1.5,
        "kernel": None,
        "measured_at": 1000.0,
        "provenance": {"host": "here"},
    }
    return Measured(**{**values, **fields})


def decision(winner: str, candidates: int = 1, decided_at: float = 1000.0) -> Decision:
    return Decision(winner, None, "fastest", 1.02, None, decided_at, candidates)


def record(*candidates: Measured, problem: int = 1, **fields: Any) -> Record:
    named = {"op": "mm", "size": [problem, 512], "strides": {"a": [512, 1]}}
    values: dict[str, Any] = {
        "environment": digest_of(ENVIRONMENT),
        "op": "mm",
        "digest": digest_of(named),
        "problem": named,
        "describe": f"mm({problem}x512)",
        "candidates": {candidate.candidate: candidate for candidate in candidates},
        "rejected": {},
        "decision": None,
        "created": 1000.0,
        "updated": 1000.0,
        "pinned": False,
    }
    return Record(**{**values, **fields})
