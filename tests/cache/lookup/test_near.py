"""Records near to a problem that has none."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import digest_of, document, open_store
from inductor_plugin.cache.lookup import near
from tests.support.cache.records import ENVIRONMENT, measured, record

HERE = digest_of(ENVIRONMENT)


def test_the_nearest_record_differs_in_the_fewest_fields(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    store.put_record(record(measured("a"), problem=1))
    far = {"op": "mm", "size": [9, 9], "strides": {"a": [9, 1]}}
    store.put_record(record(measured("a"), digest=digest_of(far), problem=2))
    sought = {"op": "mm", "size": [3, 512], "strides": {"a": [512, 1]}}
    near_record = near.nearest(store.layout, HERE, "mm", digest_of(sought), sought)
    assert near_record is not None
    assert near.differences_text(near_record.differences) in (
        "size: [1, 512] -> [3, 512]",
        "size: [2, 512] -> [3, 512]",
    )
    assert near.nearest(store.layout, HERE, "bmm", digest_of(sought), sought) is None
    assert near.nearest(store.layout, "0" * 64, "mm", digest_of(sought), sought) is None


def test_a_damaged_record_is_near_to_nothing_and_stays(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    store.put_record(record(measured("a"), problem=1))
    (path,) = store.record_paths()
    path.write_text("{")
    assert near.nearest(store.layout, HERE, "mm", "other", {}) is None
    assert path.exists()


def test_the_same_problem_elsewhere_tells_what_differs_of_the_machine(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    stored = store.put_record(record(measured("a")))
    today = {**ENVIRONMENT, "software": {"torch": "2.15.0"}}
    near_record = near.elsewhere(store.layout, digest_of(today), "mm", stored.digest, today)
    assert near_record is not None
    assert near_record.environment == HERE
    assert near.differences_text(near_record.differences) == "software.torch: '2.14.1' -> '2.15.0'"
    assert near.elsewhere(store.layout, HERE, "mm", stored.digest, ENVIRONMENT) is None


def test_many_differences_are_counted() -> None:
    many = tuple(near.differences({}, {str(n): n for n in range(9)}))
    assert near.differences_text(many).endswith(", 5 more fields")
    assert near.differences_text(()) == "no field"


MISS = {"op": "mm", "digest": "d", "describe": "mm(1x1)", "environment": "e", "reason": "none"}


def test_misses_are_kept_in_place_of_those_before(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    assert store.misses() is None
    for pid in (1, 2):
        store.put_misses({"pid": pid, "time": 1.0, "policy": "tune", "misses": [MISS]})
    kept = store.misses()
    assert kept is not None
    assert (kept["pid"], kept["misses"]) == (2, [MISS])
    assert store.verify() == []
    store.layout.misses.write_text("{")
    assert store.misses() is None
    assert [damage.kind for damage in store.verify()] == ["misses"]


BAD: list[dict[str, Any]] = [
    {"time": 1},
    {"misses": {}, "time": 1},
    {"misses": [], "time": "now"},
    {"misses": [3], "time": 1},
    *({"misses": [{**MISS, name: 3}], "time": 1} for name in MISS),
]


@pytest.mark.parametrize("fields", BAD)
def test_misses_of_another_form_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it"):
        near.parse_misses(document.dump(fields))


def test_only_the_newest_records_are_compared(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near, "NEWEST", 2)
    store = open_store(cache_dir)
    for problem, age_s in ((1, 300.0), (2, 100.0), (3, 200.0)):
        kept = store.put_record(record(measured("a"), digest=str(problem) * 64, problem=problem))
        path = store.layout.record(kept.environment, kept.op, kept.digest)
        os.utime(path, (0, 1e9 - age_s))
    first = store.record(HERE, "mm", "1" * 64)
    assert first is not None
    closest = near.nearest(store.layout, HERE, "mm", "other", first.problem)
    assert closest is not None
    assert closest.digest != first.digest  # the same problem, but the oldest record


def test_of_other_machines_the_one_that_differs_in_the_fewest_fields_is_named(
    cache_dir: Path,
) -> None:
    store = open_store(cache_dir)
    machines = [{"device": name, "torch": name, "cpp": "g++ 12"} for name in ("one", "two")]
    known = [store.put_environment(machine) for machine in machines]
    kept, _ = [store.put_record(record(measured("a"), environment=each)) for each in known]
    for environment, machine in zip(known, machines, strict=True):
        here = {**machine, "torch": "another"}
        nearest = near.elsewhere(store.layout, digest_of(here), "mm", kept.digest, here)
        assert nearest is not None
        assert (nearest.environment, len(nearest.differences)) == (environment, 1)


def test_of_several_problems_the_one_that_differs_in_the_fewest_fields_is_near(
    cache_dir: Path,
) -> None:
    store = open_store(cache_dir)
    sought: dict[str, Any] = {"op": "mm", "size": [3, 512], "strides": {"a": [512, 1]}}
    kept = store.put_record(record(measured("a"), problem=1))
    for size, strides in (([3, 512], [1, 3]), ([9, 9], [9, 1])):  # one is as near, one is not
        fields = {"op": "mm", "size": size, "strides": {"a": strides}}
        known = replace(record(measured("a")), digest=digest_of(fields), problem=fields)
        store.put_record(known)
    closest = near.nearest(store.layout, HERE, "mm", digest_of(sought), sought)
    assert closest is not None
    assert len(closest.differences) == 1
    itself = near.nearest(store.layout, HERE, "mm", kept.digest, kept.problem)
    assert itself is not None
    assert itself.digest != kept.digest  # another one, though the problem is there
    alone = near.nearest(store.layout, HERE, "mm", "0" * 64, kept.problem)
    assert alone is not None
    assert (alone.digest, alone.describe, alone.differences) == (kept.digest, kept.describe, ())


@pytest.mark.parametrize(("count", "more"), [(4, False), (5, True)])
def test_up_to_four_differences_are_shown(count: int, more: bool) -> None:
    changes = tuple(near.differences({}, {str(number): number for number in range(count)}))
    assert ("more fields" in near.differences_text(changes)) is more
    assert near.differences_text(changes).count("(absent)") == 4
