"""What problems of a cache belong to is what its entries say, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Pack, Record, open_store
from inductor_plugin.cache.graph import CHOICES, TUNED, GraphEntry
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
    left, right, other = (record(measured("a"), problem=n) for n in range(10, 13))
    moved = replace(right, environment="another")  # the graph is of this environment
    old, new = graph_of(left.digest, right.digest), graph_of("absent", updated=2.0)
    first, second = groups_of([left, moved, right, other, old, new], [], None)
    assert (first.kind, first.record, first.at_s) == ("graph", new.place, 2.0)
    assert first.places == (f"{new.environment}//absent",)
    assert second.places == (left.place, right.place)
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


def compiled(function: str, *records: Record, kind: str = "forward", at: float = 1.0, program: str = "/home/x/train.py") -> GraphEntry:  # fmt: skip
    return GraphEntry(program, function, kind, tuple(each.place for each in records), at)


def test_a_function_that_was_compiled_is_a_model_with_the_problems_of_all_its_graphs() -> None:
    first, second, third = (record(measured("a"), problem=n) for n in range(1, 4))
    forward = compiled("Gpt.forward", first, second, at=2.0)
    backward = compiled("Gpt.forward", second, third, kind="backward", at=3.0)
    single = compiled("Vit.forward", second, kind="inference")
    gpt, vit, *graphs = groups_of([first, second, third], [], None, [backward, forward, single])
    assert (gpt.kind, gpt.name, gpt.at_s) == ("model", "Gpt.forward, train.py", 3.0)
    assert gpt.places == (second.place, third.place, first.place)
    assert (vit.kind, vit.name, vit.places) == ("model", "Vit.forward, train.py", (second.place,))
    assert [(each.kind, each.key, each.name, each.places) for each in graphs] == [
        ("graph", entry.digest, f"{entry.kind} {entry.digest[:8]}, {gpt.name}", entry.problems)
        for entry in (backward, forward)
    ]
    assert len({each.key for each in (gpt, vit, *graphs)}) == 4


def test_programs_of_one_name_are_told_apart_by_their_folders() -> None:
    known = record(measured("a"))
    entries = [
        compiled("f", known, program=program) for program in ("/a/run.py", "/b/run.py", "/b/go.py")
    ]
    nameless = [compiled("", known), compiled("", known, program="")]
    names = [group.name for group in groups_of([known], [], None, [*entries, *nameless])]
    assert names == ["f, /a/run.py", "f, /b/run.py", "f, go.py", "train.py", "no program"]


def test_the_graphs_that_a_cache_has_compiled_are_groups_and_counted(tmp_path: Path) -> None:
    store, known = open_store(tmp_path), record(measured("a"))
    store.add_record(known)
    store.graphs.put(compiled("Gpt.forward", known))
    source = cache_source(store)
    (group,) = source.groups
    assert (group.name, group.places) == ("Gpt.forward, train.py", (known.place,))
    (held,) = [each for each in source.holdings if each.name == "compiled graphs"]
    assert held.count == 1
    assert held.bytes > 100
