"""A graph in Inductor's cache is compiled again once there is time to compare it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor import codecache

from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph import due as marks
from inductor_plugin.inductor.graph.due import Due, carry, due_of, is_dropped, was_dropped
from inductor_plugin.inductor.guard.allowance import Allowance, account_of

ACCOUNT = account_of("e" * 64)
KEY = "f" + "a" * 40


@pytest.mark.parametrize(("left_s", "is_due"), [(5.9, False), (6.0, True), (-1.0, False)])
def test_it_is_due_when_what_it_needs_is_left(left_s: float, *, is_due: bool) -> None:
    assert bool(Due(6.0, ACCOUNT).why(left_s)) is is_due


def test_a_graph_that_was_left_out_is_dropped_once_there_is_time(
    cache_dir: Path, inductor_cache: Path
) -> None:
    graph, config = SimpleNamespace(), Config.load({"cache_dir": str(cache_dir)}, environ={})
    config = replace(config, verify_graph="auto")
    assert due_of(graph) is None
    assert not is_dropped(graph, KEY, config)
    carry(graph, Due(6.0, ACCOUNT))
    assert due_of(graph) == Due(6.0, ACCOUNT)
    untyped: Any = codecache.FxGraphCache
    entry = Path(untyped._get_tmp_dir_for_key(KEY)) / "content"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b"a graph")
    assert not is_dropped(graph, KEY, config)
    Allowance(open_store(cache_dir), ACCOUNT).earn(7.0)
    for other in ({"policy": "cached"}, {"verify_graph": "off"}, {"cache": "off"}):
        options: Any = other
        assert not is_dropped(graph, KEY, replace(config, **options))
    assert entry.exists()
    assert not was_dropped()
    assert is_dropped(graph, KEY, config)
    assert (
        not entry.exists()
    )  # the graph that is compared now is stored beside it, not in its place
    assert was_dropped()
    assert not was_dropped()


def test_another_torch_that_keeps_its_entries_elsewhere_is_no_error(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "codecache", SimpleNamespace(FxGraphCache=SimpleNamespace()))
    config = Config.load({"cache_dir": str(cache_dir), "verify_graph": "auto"}, environ={})
    graph = SimpleNamespace()
    carry(graph, Due(0.0, ACCOUNT))
    assert is_dropped(graph, KEY, config)
    assert was_dropped()
