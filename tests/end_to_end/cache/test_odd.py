"""A compile with a cache that holds odd entries: it is as if they were not there."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from inductor_plugin.cache import document, open_store
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.candidates.providers import offered
from tests.support.compile import fresh

__all__ = ["fresh"]  # the fixture


def multiply(cache_dir: Path, **options: Any) -> None:
    """Compile a product, and check its numbers."""
    RUNTIME.forget()
    torch._dynamo.reset()
    a, b = torch.randn(64, 32), torch.randn(32, 48)
    options = {"cache_dir": str(cache_dir), **options}
    compiled: Callable[..., torch.Tensor] = torch.compile(
        torch.mm, backend="inductor_plugin", options=options
    )
    assert torch.allclose(compiled(a, b), a @ b, atol=1e-4)


def each(fields: dict[str, Any], **values: Any) -> None:
    for candidate in fields["candidates"].values():
        candidate.update(values)


ODD: dict[str, Callable[[dict[str, Any]], None]] = {
    "median_str": lambda fields: each(fields, median_ms="abc"),
    "spread_str": lambda fields: each(fields, spread_ms="abc"),
    "negative": lambda fields: each(fields, median_ms=-1.0),
    "provenance": lambda fields: each(fields, provenance=[]),
    "winner": lambda fields: fields["decision"].update(winner=["x"]),
}
SOUND: dict[str, Callable[[dict[str, Any]], None]] = {
    "format": lambda fields: fields.update(format=2),
    "field": lambda fields: each(fields, energy_j=1.0),
    "decision": lambda fields: fields["decision"].update(because="x"),
}


@pytest.mark.slow
def test_a_compile_takes_odd_records_for_none_and_keeps_those_of_other_versions(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with offered("good"):
        multiply(cache_dir)
        (path,) = cache_dir.glob("records/*/*/*.json")
        written = path.read_bytes()
        for name, change in {**ODD, **SOUND}.items():
            caplog.clear()
            fields = document.load(written)
            change(fields)
            path.write_bytes(document.dump(fields))
            multiply(cache_dir, policy="cached")
            assert ("damaged cache entry" in caplog.text) == (name in ODD), name
            assert path.exists() == (name in SOUND), name
            assert "could not tune" not in caplog.text
        path.unlink()
        os.mkfifo(path)
        multiply(cache_dir, policy="cached")
    assert open_store(cache_dir).counters()["corrupt"] == len(ODD) + 1
