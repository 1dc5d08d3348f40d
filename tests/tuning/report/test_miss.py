"""Why a problem was a miss, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import Store, digest_of, open_store
from inductor_plugin.tuning.report.miss import Miss, explained
from inductor_plugin.tuning.validity import NOT_CHECKED
from tests.support.cache.records import ENVIRONMENT, measured, record

NAMED = {"op": "mm", "size": [1, 512], "strides": {"a": [512, 1]}}


@pytest.fixture
def store(cache_dir: Path) -> Store:
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    store.put_record(record(measured("a")))
    return store


def why(
    store: Store,
    environment: Mapping[str, object] = ENVIRONMENT,
    problem: Mapping[str, object] = NAMED,
    offered: tuple[str, ...] = ("a",),
    void: Mapping[str, str] | None = None,
    policy: str = "cached",
) -> Miss:
    digest = store.put_environment(environment)
    op = str(problem["op"])
    key = digest_of(problem)
    return explained(store, digest, op, key, "mm(..)", problem, offered, void or {}, policy)


def test_a_new_shape_names_the_nearest_record_and_what_differs(store: Store) -> None:
    miss = why(store, problem={**NAMED, "size": [2, 512]})
    assert "no record; the nearest, " in miss.text()
    assert miss.text().endswith("differs in size: [1, 512] -> [2, 512]")
    assert miss.near is not None
    assert miss.to_dict()["near"]["digest"] == digest_of(NAMED)


def test_another_environment_names_what_differs_of_it(store: Store) -> None:
    miss = why(store, {**ENVIRONMENT, "device": {"name": "cpu", "threads": 4}})
    assert "; from there to here device.threads: '(absent)' -> 4" in miss.text()


def test_a_record_without_some_candidates_names_them(store: Store) -> None:
    miss = why(store, offered=("a", "b", "c"))
    assert miss.reason == (
        f"its record {digest_of(NAMED)[:12]} lacks 2 of 3 candidates: b, c; "
        "compile once with policy=tune to measure them"
    )
    assert miss.near is None


def test_measurements_that_are_not_used_are_named_with_what_to_do(store: Store) -> None:
    store.put_record(record(measured("b"), measured("c")))
    void = {"a": NOT_CHECKED, "b": "crashed once"}
    miss = why(store, offered=("a", "b", "c", "d"), void=void)
    assert miss.reason == (
        f"its record {digest_of(NAMED)[:12]} lacks 1 of 4 candidates: d; "
        "has 1 of 4 candidates that are not used (crashed once): b; "
        "has 1 of 4 candidates that are not used (numbers not checked): a; "
        "compile once with policy=tune to measure them, or set verify_numerics=off to use them unchecked"
    )
    assert miss.unseen == ("d", "a", "b")


def test_what_is_measured_anyway_needs_no_advice(store: Store) -> None:
    assert why(store, void={"a": NOT_CHECKED}, policy="tune").reason.endswith("not checked): a")


def test_a_record_of_another_process_completed_it(store: Store) -> None:
    assert "was completed meanwhile" in why(store).reason


def test_an_empty_cache_is_named(store: Store) -> None:
    miss = why(store, problem={**NAMED, "op": "bmm"})
    assert miss.reason == f"no record of any bmm for this machine and software in {store.root}"


def test_of_more_than_three_candidates_three_are_named(store: Store) -> None:
    assert "lacks 3 of 4 candidates: b, c, d;" in why(store, offered=(*"abcd",)).reason
    assert "lacks 4 of 5 candidates: b, c, d ...;" in why(store, offered=(*"abcde",)).reason


def test_of_two_caches_the_nearest_record_is_named(tmp_path: Path) -> None:
    """It may be in either of them."""
    near, far = {**NAMED, "size": [2, 512]}, {**NAMED, "size": [9, 9], "strides": {"a": [9, 1]}}
    for own, shared in ((near, far), (far, near)):
        folder = tmp_path / str(own["size"])
        for name, fields in (("shared", shared), ("own", own)):
            known = record(measured("a"))
            kept = open_store(folder / name)
            kept.put_environment(ENVIRONMENT)
            kept.put_record(replace(known, problem=fields, digest=digest_of(fields)))
        both = open_store(folder / "own", second=str(folder / "shared"))
        miss = why(both)
        assert miss.near is not None
        assert miss.near.digest == digest_of(near)
