"""Whole caches become one in any order and grouping: records, kernels, environments, and what is in quarantine.

Of a kernel that was built twice, with other bytes, the first build stays: a process may have loaded it, and a signature may vouch for it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from inductor_plugin.cache import Measured, Record, Store, open_store
from inductor_plugin.cache.quarantine import Quarantined
from inductor_plugin.cache.transfer.archive import merge_stores
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record

TIMES = strategies.sampled_from([1.0, 2.0])


@dataclass(frozen=True)
class Content:
    """What a cache is filled with; a kernel is named by its key and its build."""

    records: Sequence[Record]
    quarantine: Sequence[Quarantined]
    kernels: Sequence[str]
    environments: Sequence[str]


def a_row(name: str, status: str, samples: int, when: float) -> Measured:
    times_ms = (1.0,) * samples if status == "ok" else ()
    return measured(name, status=status, samples_ms=times_ms, measured_at=when)


def a_record(problem: int, rows: list[Measured], winner: str, when: float, pinned: bool) -> Record:
    chosen = decision(winner, len(rows), when) if winner else None
    return record(*rows, problem=problem, decision=chosen, updated=when, pinned=pinned)


def an_entry(candidate: str, status: str, count: int, mishaps: int, when: float) -> Quarantined:
    fields = {"status": status, "mishaps": mishaps}
    return Quarantined("e", candidate, status, f"{status}, {count}", 1.0, when, count, fields)


rows = strategies.builds(
    a_row,
    strategies.sampled_from("ab"),
    strategies.sampled_from(["ok", "skipped", "wrong"]),
    strategies.integers(1, 3),
    TIMES,
)
records = strategies.builds(
    a_record,
    strategies.integers(1, 2),
    strategies.lists(rows, max_size=2),
    strategies.sampled_from(["", "a", "b"]),
    TIMES,
    strategies.booleans(),
)
entries = strategies.builds(
    an_entry,
    strategies.sampled_from("ab"),
    strategies.sampled_from(["hung", "crashed", "wrong"]),
    strategies.integers(1, 3),
    strategies.integers(0, 2),
    TIMES,
)
contents = strategies.builds(
    Content,
    strategies.lists(records, max_size=2),
    strategies.lists(entries, max_size=2),
    strategies.lists(strategies.sampled_from(["a1", "a2", "b1"]), max_size=2),
    strategies.lists(strategies.sampled_from("ab"), max_size=2),
)


def filled(folder: Path, content: Content) -> Store:
    """Return a cache with a content; of one candidate or problem the later entry goes on where the former ends."""
    store = open_store(folder)
    for each in content.records:
        store.put_record(each)
    for each in content.quarantine:
        store.add_quarantined(each)
    for name in content.kernels:
        store.put_kernel(kernel_key(name[0]), {"kernel.so": name.encode()})
    for name in content.environments:
        store.put_environment({**ENVIRONMENT, "device": {"name": name}})
    return store


def held(store: Store) -> dict[str, Any]:
    """Return all that a cache has, but for which build of a kernel, and when it was written."""
    folders = store.layout.records.glob("*/environment.json")
    return {
        "records": {(each.environment, each.digest): each for each in store.iter_records()},
        "quarantine": {each.candidate: each for each in store.iter_quarantine()},
        "kernels": {each.digest: [*each.files] for each in store.iter_kernels()},
        "environments": {path.parent.name: path.read_text() for path in folders},
    }


def check(three: tuple[Content, Content, Content]) -> None:
    with tempfile.TemporaryDirectory() as name:
        numbers = itertools.count()

        def merged(*sources: Store) -> Store:
            target = open_store(Path(name) / f"merged {next(numbers)}")
            for source in sources:
                merge_stores(target, open_store(source.root, read_only=True))
            return target

        a, b, c = (filled(Path(name) / f"own {n}", each) for n, each in enumerate(three))
        kept = merged(a, b, c)
        expected = held(kept)
        for order in ((a, c, b), (c, b, a)):
            assert held(merged(*order)) == expected
        assert held(merged(merged(b, c), a)) == expected
        assert held(merged(a, merged(c, b))) == expected
        again = merge_stores(kept, open_store(a.root, read_only=True))
        assert held(kept) == expected
        assert (again.records, again.merged, again.kernels, again.quarantined) == (0, 0, 0, 0)


def checked(examples: int) -> Callable[[], None]:
    """Return a test of so many sets of three caches, the same in each run."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(strategies.tuples(contents, contents, contents))
    def run(three: tuple[Content, Content, Content]) -> None:
        check(three)

    return run


def test_the_order_in_which_caches_merge_does_not_matter() -> None:
    """Few sets, since each is some hundred files; records, pins and the rules of both are tested with more."""
    checked(10)()


@pytest.mark.slow
def test_the_order_in_which_a_thousand_sets_of_caches_merge_does_not_matter() -> None:
    checked(1000)()


def test_of_two_builds_of_a_kernel_the_first_stays(tmp_path: Path) -> None:
    """Also in the cache of a process that has loaded it, and however often the other comes."""
    sources = [
        filled(tmp_path / name, Content((), (), [name, f"b{name}"], ())) for name in ("a1", "a2")
    ]
    for order in (sources, sources[::-1]):
        target = open_store(tmp_path / f"from {order[0].root.name}")
        for source in [*order, *order]:
            merge_stores(target, open_store(source.root, read_only=True))
        for name in ("a", "b"):
            kept, first = (store.kernel(kernel_key(name).digest) for store in (target, order[0]))
            assert kept is not None
            assert first is not None
            assert kept.files == first.files
