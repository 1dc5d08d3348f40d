"""Sizes and strides of a record as those of tensors, and what is no call at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize("extent", [2**63, 10**400])
def test_extents_that_no_tensor_has_are_refused(extent: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tensor has"):
        measured_shapes(f"mm(2x{extent}, {extent}x2)")
    plain = {"offset": 0, "dtype": "float32", "device": "cpu", "constant": False}
    dense: dict[str, Any] = {**plain, "layout": "strided", "size": [2, 2], "stride": [2, 1]}
    for spoiled in ({"stride": [extent, 1]}, {"offset": extent}):
        problem = {"inputs": [dense, {**dense, **spoiled}], "output": dense, "arguments": []}
        huge = replace(record(measured("a")), problem=problem, describe="mm(2x2, 2x2)")
        assert "no tensor has" in script(huge, {}, str(tmp_path)).refused
    huge = replace(record(measured("a")), describe=f"mm(2x{extent}, {extent}x2)")
    assert "no tensor has" in script(huge, {}, str(tmp_path)).refused
