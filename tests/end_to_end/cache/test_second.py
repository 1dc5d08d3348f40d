"""A compile that finds its records in a second cache."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inductor_plugin.cache import open_store
from tests.support.candidates.providers import offered
from tests.support.compile import Spent, compiled, fresh
from tests.support.lowering import Lab, library_first

pytestmark = pytest.mark.compat

__all__ = ["fresh"]  # the fixture


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_what_the_second_cache_knows_is_not_measured_and_it_is_not_changed(
    cache_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    a = torch.randn(27, 27)
    with offered("good"), Lab(library_first, cache_dir).open():
        compiled(torch.mm, shared)(a, a)
        before = files(shared)
        torch.compiler.reset()
        spent = Spent()
        answer = compiled(torch.mm, cache_dir, cache_read=str(shared))(a, a)
        assert torch.allclose(answer, a @ a, atol=1e-4)
        assert (spent.stats.record_hits, spent.stats.benchmarked) == (1, 0)
        b = torch.randn(28, 28)
        compiled(torch.mm, cache_dir, cache_read=str(shared))(b, b)
    assert files(shared) == before
    assert [r.describe for r in open_store(cache_dir).iter_records()] == ["mm(28x28, 28x28)"]
    assert "inductor-plugin: " not in caplog.text
