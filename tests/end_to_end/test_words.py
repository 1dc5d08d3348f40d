"""What a user is told by whole compiles: hints and misses, and nothing where all is known."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inductor_plugin.cache import open_store
from tests.support.candidates.providers import offered
from tests.support.compile import compiled, fresh
from tests.support.warned import forget, warnings_in

pytestmark = pytest.mark.compat

__all__ = ["fresh"]  # the fixture


def test_where_nothing_can_be_tuned_one_hint_says_why(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for rows in (22, 23):
        a = torch.randn(rows, rows)
        compiled(torch.mm, cache_dir)(a, a)
    (hint,) = warnings_in(caplog)
    assert hint.startswith("inductor-plugin: nothing was tuned: on a CPU ")
    assert "TORCHINDUCTOR_FREEZING=1" in hint


def test_who_chose_the_library_alone_needs_no_hint(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a = torch.randn(29, 29)
    compiled(torch.mm, cache_dir, gemm_backends="ATEN")(a, a)
    assert warnings_in(caplog) == []


def test_a_miss_is_told_and_a_known_problem_is_not(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "inductor_plugin")
    a = torch.randn(24, 24)
    with offered("good"):
        compiled(torch.mm, cache_dir)(a, a)
        (miss,) = [r.getMessage() for r in caplog.records if "miss: " in r.getMessage()]
        assert miss.startswith("miss: mm(24x24, 24x24): no record")
        kept = open_store(cache_dir).misses()
        assert kept is not None
        assert [m["describe"] for m in kept["misses"]][-1] == "mm(24x24, 24x24)"
        caplog.clear()
        forget()
        torch.compiler.reset()
        compiled(torch.mm, cache_dir, policy="cached")(a, a)
    assert [r.getMessage() for r in caplog.records if "miss: " in r.getMessage()] == []
    assert warnings_in(caplog) == []


def test_cached_alone_with_a_wrong_cache_is_one_warning(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with offered("good"):
        for rows in (25, 26):
            a = torch.randn(rows, rows)
            compiled(torch.mm, cache_dir, policy="cached")(a, a)
    (warning,) = warnings_in(caplog)
    assert f"{cache_dir} has no record of this machine and software" in warning
