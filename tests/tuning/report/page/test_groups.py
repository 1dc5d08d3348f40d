"""What problems of a cache belong to is what its entries say, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Pack, Record, open_store
from inductor_plugin.cache.graph import CHOICES, TUNED
from inductor_plugin.tuning.report.page.gather import cache_source
from inductor_plugin.tuning.report.page.groups import groups_of
from tests.support.cache.records import measured, record

MISSES: dict[str, Any] = {"pid": 7, "time": 4.0, "program": "/home/x/train.py", "policy": "tune"}


def graph_of(*digests: str, updated: float = 1.0) -> Record:
    """Return the record of a graph that was compared with choices for these problems."""
    tuned = replace(measured(TUNED), provenance={CHOICES: dict.fromkeys(digests, "fast")})
    whole = record(tuned, op="graph", problem=len(digests))
    return replace(whole, describe="graph of 9 nodes", updated=updated)


def pack_of(model: str, *problems: str, kernel: str) -> Pack:
    return Pack("H200", "sm_90a", 3.0, {}, (model,), problems, (kernel,))


def test_a_graph_has_the_problems_that_its_record_names() -> None:
    one, two, other = (record(measured("a"), problem=n) for n in range(10, 13))
    moved = replace(two, environment="another")  # the graph is of this environment
    old, new = graph_of(one.digest, two.digest), graph_of("absent", updated=2.0)
    first, second = groups_of([one, moved, two, other, old, new], [], None)
    assert (first.kind, first.record, first.at_s) == ("graph", new.place, 2.0)
    assert first.places == (f"{new.environment}//absent",)
    assert second.places == (one.place, two.place)
    assert second.name == f"graph of 9 nodes {old.digest[:8]}"


def test_a_graph_without_choices_is_no_group() -> None:
    whole = record(measured(TUNED), op="graph")
    assert groups_of([whole, record(measured("a"))], [], None) == []


def test_a_model_has_the_problems_that_a_pack_names_and_has_a_kernel_for() -> None:
    packed = replace(measured("a"), kernel="k1")
    own = replace(record(packed, problem=1), describe="mm(1x2, 2x3)")
    same_words = replace(record(measured("a"), problem=2), describe="mm(1x2, 2x3)")
    same_kernel = replace(record(packed, problem=3), describe="mm(4x2, 2x3)")
    pack = pack_of("gpt:step", "mm(1x2, 2x3)", "mm(7x7, 7x7)", kernel="k1")
    (group,) = groups_of([own, same_words, same_kernel], [pack], None)
    assert (group.kind, group.name, group.places) == ("model", "gpt:step for H200", (own.place,))
    assert groups_of([own], [pack_of("gpt:step", own.describe, kernel="k2")], None) == []


def test_the_last_process_has_its_misses_once_each() -> None:
    known = record(measured("a"))
    row = {"environment": known.environment, "op": known.op, "digest": known.digest}
    (group,) = groups_of([known], [], {**MISSES, "misses": [row, row]})
    assert (group.kind, group.name) == ("process", "train.py, process 7")
    assert (group.places, group.at_s) == ((known.place,), 4.0)
    (nameless,) = groups_of([known], [], {**MISSES, "program": None, "misses": [row]})
    assert nameless.name == "no program, process 7"


def test_a_cache_has_groups_and_the_page_of_a_process_only_its_graphs(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    known = record(measured("a"))
    store.add_record(known)
    row = {"environment": known.environment, "op": known.op, "digest": known.digest}
    texts = {"describe": "mm", "reason": "no record"}
    store.put_misses({**MISSES, "misses": [{**row, **texts}]})
    (group,) = cache_source(store).groups
    assert group.places == (known.place,)
    assert cache_source(store, [known]).groups == ()
