"""Sizes and strides of a record as those of tensors, and what is no call at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inductor_plugin.repro.operand import concrete, measured_shapes
from inductor_plugin.repro.script import script
from tests.support.cache.records import measured, record


def test_orders_of_strides_become_dense_tensors() -> None:
    assert concrete(["rank0", "1"], [5, 3]) == (3, 1)
    assert concrete(["1", "rank0"], [5, 3]) == (1, 5)
    assert concrete(["0", "rank1", "rank0", "1"], [7, 2, 5, 3]) == (0, 15, 3, 1)
    assert concrete([9, 1], [5, 3]) == (9, 1)


def test_strides_that_are_known_are_as_they_are_beside_those_that_are_not() -> None:
    assert concrete(["rank1", 64, 1], [7, 5, 3]) == (320, 64, 1)
    assert concrete([0, "rank0", 1], [7, 5, 3]) == (0, 3, 1)
    assert concrete([4096, "rank0", 1], [2, 5, 3]) == (4096, 3, 1)


def test_sizes_in_a_description_are_those_that_were_measured() -> None:
    assert measured_shapes("mm(24x16, packed, 3, scalar)") == [(24, 16), (), (3,), ()]


def test_a_whole_graph_is_no_call(tmp_path: Path) -> None:
    graph = replace(record(measured("tuned", 1.0)), op="graph", describe="graph of 42 nodes")
    assert (
        script(graph, {}, str(tmp_path)).refused
        == "it is a whole graph, not a call; compile its model"
    )
