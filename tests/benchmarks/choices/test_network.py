"""Networks of equal layers: each has another candidate of the layer, and they are sampled in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from benchmarks.choices import network


def test_each_network_has_another_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it all networks run the candidate that Inductor would choose, under the names of the others."""
    registered: list[Callable[[list[Any]], list[Any]]] = []
    compiled: list[Any] = []

    def compile_layers(layers: list[network.Layer], **_: object) -> mock.Mock:
        assert layers == [(4, 96, 160)] * network.EQUAL
        (keep,) = registered
        compiled.extend(keep(["library", "rival", "rival"]))
        return mock.Mock(name=compiled[-1])

    monkeypatch.setattr(network, "add_preprocessing_fn", registered.append)
    monkeypatch.setattr(network, "clear_preprocessing_fns", registered.clear)
    monkeypatch.setattr(network, "choice_name", str)
    monkeypatch.setattr(network, "compiled", compile_layers)
    built = network.networks((4, 96, 160))
    assert list(built) == ["library", "rival", "rival 2"]
    assert compiled == ["library", "rival", "rival"]
    assert len(set(map(id, built.values()))) == 3
    assert not registered


def test_a_network_is_sampled_in_turns_behind_evicted_caches_and_by_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    clock = iter(range(10**6))
    monkeypatch.setattr(network, "evicting_bytes", mock.Mock(return_value=64))
    buffer = mock.Mock(sum=lambda: calls.append("read"))
    monkeypatch.setattr(network.torch, "ones", mock.Mock(return_value=buffer))
    monkeypatch.setattr(network.time, "perf_counter", lambda: next(clock) * 1e-3 * network.EQUAL)
    answer = network.sampled({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    turn = {name: ["read", *[name] * 4] for name in "ab"}
    assert calls == turn["a"] + turn["b"] + turn["b"] + turn["a"]
    assert answer["samples_ms"] == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
