"""Values that belong to an object go with it."""

from __future__ import annotations

import gc
import weakref

from inductor_plugin.inductor.facts.attached import attached


class Graph:
    """Stands in for a graph."""


def test_a_value_is_created_once_for_each_object_and_name() -> None:
    first, second = Graph(), Graph()
    value = attached(first, "a", list[int])
    assert attached(first, "a", list[int]) is value
    assert attached(first, "b", list[int]) is not value
    assert attached(second, "a", list[int]) is not value


def with_state() -> weakref.ref[Graph]:
    graph = Graph()
    attached(graph, "state", lambda: [graph])
    return weakref.ref(graph)


def test_a_value_that_leads_back_to_its_object_goes_with_it() -> None:
    kept = with_state()
    gc.collect()
    assert kept() is None
