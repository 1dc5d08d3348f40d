"""What goes to a remote and comes back, call by call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inductor_plugin.cache import Record, Store, open_store
from inductor_plugin.cache.remote.chain import read_chains
from inductor_plugin.cache.remote.descriptions import Description
from inductor_plugin.cache.remote.edition import Edition, edition_of
from inductor_plugin.cache.remote.exchange import Exchange, saved_ms
from inductor_plugin.cache.remote.name import MOST_EDITIONS, Place, edition_name, file_name
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)
from tests.support.remote.files import FaultyFiles, MemoryFiles
from tests.support.trust.payload import FRIEND, STRANGER, TRUST

PLACE = Place(record().environment, record().op, record().digest)


def exchange(files: Any, path: Path, *, kernels: bool = False) -> tuple[Exchange, Store]:
    store = open_store(path)
    store.put_environment(ENVIRONMENT)
    return Exchange(files, store, kernels=kernels, trusted=True), store


def known(files: Any) -> Record:
    chain = read_chains(lambda n, limits: files.read(n, limits, 1.0), [PLACE])[PLACE]
    assert chain.edition is not None
    return chain.edition.record


def names(files: MemoryFiles) -> list[str]:
    return [name.rpartition("/")[2] for name in sorted(files.objects) if "/records/" in name]


def test_a_record_that_one_machine_wrote_is_in_the_cache_of_another_after_three_requests(
    tmp_path: Path,
) -> None:
    files = MemoryFiles()
    here, _ = exchange(files, tmp_path / "here")
    here.publish(record(measured("a")), 1.0)
    there, store = exchange(files, tmp_path / "there")
    files.requests.clear()
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert answer.hit
    assert files.requests == {"read": 2}  # its first two editions, nothing is listed
    stored = store.record(*PLACE)
    assert stored is not None
    assert set(stored.candidates) == {"a"}
    amounts = there.take_amounts()
    assert (amounts.asked, amounts.hits) == (1, 1)
    assert amounts.saved_ms == pytest.approx(1500 + 2.5)
    assert amounts.bytes_read > 100
    assert not there.fetch([PLACE], 1.0)[PLACE].hit


def test_what_the_remote_knows_is_not_written_again(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, _ = exchange(files, tmp_path / "here")
    here.publish(record(measured("a")), 1.0)
    before = dict(files.objects)
    here.publish(replace(record(measured("a")), updated=5000.0), 1.0)
    assert files.objects == before


def test_two_machines_that_tune_at_once_both_count_and_neither_replaces_the_other(
    tmp_path: Path,
) -> None:
    files = MemoryFiles()
    sender, _ = exchange(files, tmp_path / "one")
    other, _ = exchange(files, tmp_path / "other")
    empty = sender.fetch([PLACE], 1.0)[PLACE].chain  # both have seen that there is nothing
    sender.publish(record(measured("a")), 1.0, empty)
    other.publish(record(measured("b")), 1.0, empty)
    assert names(files) == ["0000.json", "0001.json"]
    assert set(known(files).candidates) == {"a", "b"}


class Careless(FaultyFiles):
    """A store that does not compare before it writes; another machine writes just before the first edition is."""

    first: Callable[[], object] | None = None

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        first, self.first = (self.first, None) if "/records/" in name else (None, self.first)
        if first is not None:
            first()
        super().create(name, data, timeout_s)


def careless() -> Careless:
    return Careless(MemoryFiles(), overwrites=True)


def test_a_store_that_does_not_compare_is_looked_at_just_before_it_is_written_to(
    tmp_path: Path,
) -> None:
    files = careless()
    sender, _ = exchange(files, tmp_path / "one")
    other, _ = exchange(files, tmp_path / "other")
    empty = sender.fetch([PLACE], 1.0)[PLACE].chain  # both have seen that there is nothing
    sender.publish(record(measured("a")), 1.0, empty)
    other.publish(record(measured("b")), 1.0, empty)  # minutes later
    assert set(known(files).candidates) == {"a", "b"}
    assert sender.overwritten(1.0) == other.overwritten(1.0) == []


def test_an_edition_that_another_machine_has_replaced_is_written_again(tmp_path: Path) -> None:
    files = careless()
    sender, _ = exchange(files, tmp_path / "one")
    other, _ = exchange(files, tmp_path / "other")
    first = record(measured("a"))
    files.first = lambda: sender.publish(first, 1.0)  # and reads back what it wrote
    other.publish(record(measured("b")), 1.0)
    assert set(known(files).candidates) == {"b"}
    assert sender.is_unconfirmed
    assert sender.overwritten(1.0) == [PLACE]
    assert not sender.is_unconfirmed
    sender.publish(first, 1.0)
    assert set(known(files).candidates) == {"a", "b"}
    assert sender.overwritten(1.0) == other.overwritten(1.0) == []


def test_an_edition_that_is_replaced_while_it_is_read_back_is_written_behind_the_other(
    tmp_path: Path,
) -> None:
    files = careless()
    sender, _ = exchange(files, tmp_path / "one")
    strange = edition_of(record(measured("b"))).dump()
    create, raced = files.create, list[str]()

    def late(name: str, data: bytes, timeout_s: float) -> None:
        create(name, data, timeout_s)
        if "/records/" in name and not raced:
            raced.append(name)
            create(name, strange, timeout_s)  # by a machine that had looked before

    files.create = late  # type: ignore[method-assign]
    sender.publish(record(measured("a")), 1.0)
    assert raced
    assert set(known(files).candidates) == {"a", "b"}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=6))
def test_in_whatever_order_machines_write_all_that_was_measured_is_there(
    sets: list[set[str]],
) -> None:
    files = MemoryFiles()
    for number, some in enumerate(sets):
        store = open_store("/nowhere", memory_only=True)
        rows = [measured(name, samples_ms=(1.0,) * (number + 1)) for name in sorted(some)]
        Exchange(files, store, kernels=False).publish(record(*rows), 1.0)
    assert set(known(files).candidates) == set().union(*sets)
    assert len(names(files)) <= len(sets)


def test_a_damaged_edition_blocks_nobody_and_is_read_once_more(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, _ = exchange(files, tmp_path / "here")
    here.publish(record(measured("a")), 1.0)
    broken = FaultyFiles(files, cut=1)
    there, store = exchange(broken, tmp_path / "there")
    assert there.fetch([PLACE], 1.0)[PLACE].hit  # it was cut on its way
    assert store.record(*PLACE) is not None
    files.objects[edition_name(PLACE, 0)] = b"garbage"
    third, _ = exchange(files, tmp_path / "third")
    answer = third.fetch([PLACE], 1.0)[PLACE]
    assert not answer.hit
    assert "checksum" in answer.damage[0]
    third.publish(record(measured("b")), 1.0)
    assert names(files) == ["0000.json", "0001.json"]
    assert set(known(files).candidates) == {"b"}


def test_editions_that_have_expired_before_others_leave_the_others_readable(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, _ = exchange(files, tmp_path / "here")
    for name in "abc":
        here.publish(record(measured(name)), 1.0)
    assert len(names(files)) == 3
    del files.objects[edition_name(PLACE, 0)]
    assert set(known(files).candidates) == {"a", "b", "c"}
    for number in (1, 2):
        del files.objects[edition_name(PLACE, number)]
    here.publish(record(measured("d")), 1.0)
    assert names(files) == ["0000.json"]


def test_a_record_has_only_so_many_editions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    here, _ = exchange(files, tmp_path / "here")
    for number in range(MOST_EDITIONS + 3):
        here.publish(record(measured(f"c{number}")), 1.0)
    assert len(names(files)) == MOST_EDITIONS
    assert len(known(files).candidates) == MOST_EDITIONS
    assert here.take_amounts().full == 3
    here.publish(record(measured("c0")), 1.0)
    assert here.take_amounts().full == 0  # it is known there
    (warning,) = [each for each in caplog.records if "is full" in each.message]
    assert f"it has {MOST_EDITIONS} editions" in warning.message


def test_a_record_that_would_be_too_large_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    here, _ = exchange(files, tmp_path / "here")
    here.publish(record(measured("a")), 1.0)
    size = len(files.objects[edition_name(PLACE, 0)])
    monkeypatch.setattr("inductor_plugin.cache.remote.exchange.MAX_BYTES", size + 10)
    here.publish(record(measured("b")), 1.0)
    assert names(files) == ["0000.json"]
    assert here.take_amounts().full == 1
    assert "is full (it would have more than" in caplog.text


def test_an_upload_whose_answer_was_lost_is_not_done_twice(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, _ = exchange(files, tmp_path / "here")
    create = files.create

    def lost(name: str, data: bytes, timeout_s: float) -> None:
        create(name, data, timeout_s)
        raise TimeoutError("no answer in time")

    files.create = lost  # type: ignore[method-assign]
    here.publish(record(measured("a")), 1.0)
    assert names(files) == ["0000.json"]


def with_kernel(store: Store) -> Record:
    entry = put_library(store)
    row = measured("a", kernel=entry.digest)
    return store.put_record(record(row, decision=decision("a")))


def test_kernels_travel_only_where_both_machines_want_it(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here")
    here.publish(with_kernel(store), 1.0)
    assert not any("/files/" in name for name in files.objects)
    willing, _ = exchange(files, tmp_path / "here", kernels=True)
    willing.publish(with_kernel(store), 1.0)
    assert sum("/files/" in name for name in files.objects) == 2
    there, other = exchange(files, tmp_path / "there")
    there.fetch([PLACE], 1.0)
    assert other.kernel(kernel_key().digest) is None
    there, other = exchange(files, tmp_path / "third", kernels=True)
    there.fetch([PLACE], 1.0)
    kernel = other.kernel(kernel_key().digest)
    assert kernel is not None
    assert kernel.path("kernel.so").read_bytes() == b"library"
    assert there.take_amounts().kernels == 1


@pytest.mark.parametrize("fault", ["replaced", "cut", "gone"])
def test_a_file_that_is_not_the_one_of_the_edition_is_no_kernel(fault: str, tmp_path: Path) -> None:
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here", kernels=True)
    here.publish(with_kernel(store), 1.0)
    for name in [name for name in files.objects if "/files/" in name]:
        content = files.objects.pop(name)
        if fault != "gone":
            files.objects[name] = b"evil" if fault == "replaced" else content[:-1]
    there, other = exchange(files, tmp_path / "there", kernels=True)
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert answer.hit  # the record is as good as before
    assert other.kernel(kernel_key().digest) is None
    assert bool(answer.damage) == (fault != "gone")


def two_builds(files: MemoryFiles, path: Path) -> Edition:
    """Write two builds of one kernel, signed by a friend and by a stranger; return the edition that has both."""
    for content, signer in ((b"library", FRIEND), (b"other", STRANGER)):
        store = open_store(path / signer.public)
        entry = store.put_kernel(kernel_key(), {"kernel.so": content})
        row = measured("a", kernel=entry.digest)
        kept = store.put_record(record(row, decision=decision("a")))
        Exchange(files, store, kernels=True, signer=signer).publish(kept, 1.0)
    chain = read_chains(lambda n, limits: files.read(n, limits, 1.0), [PLACE])[PLACE]
    assert chain.edition is not None
    return chain.edition


def library_of(build: Description) -> str:
    """Return the name of the library of a build in the remote."""
    return file_name(PLACE.environment, build["files"]["kernel.so"])


@pytest.mark.parametrize("fault", ["gone", "replaced"])
def test_where_the_files_of_one_build_are_lost_the_next_build_is_taken(
    fault: str, tmp_path: Path
) -> None:
    files, digest = MemoryFiles(), kernel_key().digest
    first, second = two_builds(files, tmp_path).descriptions(digest)
    if fault == "gone":
        del files.objects[library_of(first)]
    else:
        files.objects[library_of(first)] = b"evil"
    there, store = exchange(files, tmp_path / "there", kernels=True)
    answer = there.fetch([PLACE], 1.0)[PLACE]
    kernel = store.kernel(digest)
    assert kernel is not None
    assert dict(kernel.files) == second["files"]
    assert there.take_amounts().kernels == 1
    assert (bool(answer.damage), answer.error) == (fault == "replaced", None)


def test_the_next_build_has_to_be_trusted_as_the_first_and_is_no_refusal(tmp_path: Path) -> None:
    files, digest = MemoryFiles(), kernel_key().digest
    (friends,) = (
        build
        for build in two_builds(files, tmp_path).descriptions(digest)
        if FRIEND.public in build["signatures"]
    )
    del files.objects[library_of(friends)]
    store = open_store(tmp_path / "there", trust=TRUST)
    there = Exchange(files, store, kernels=True)
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert store.kernel(digest) is None
    assert (answer.refused, answer.damage, answer.error) == ("", (), None)
    assert there.take_amounts().refused == 0


def test_a_hostile_edition_writes_nothing_outside_the_cache(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here", kernels=True)
    here.publish(with_kernel(store), 1.0)
    chain = read_chains(lambda n, limits: files.read(n, limits, 1.0), [PLACE])[PLACE]
    assert chain.edition is not None
    digest = kernel_key().digest
    fields = {**chain.edition.kernels[digest], "files": {"../../../evil": "0" * 64}}
    files.objects[edition_name(PLACE, 0)] = edition_of(
        chain.edition.record, {digest: fields}
    ).dump()
    there, _ = exchange(files, tmp_path / "there", kernels=True)
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert "outside its folder" in answer.damage[0]
    assert not list(tmp_path.rglob("evil"))


def test_the_time_saved_is_that_of_the_candidates_that_were_not_known() -> None:
    before, after = record(measured("a")), record(measured("a"), measured("b"))
    assert saved_ms(None, after) == pytest.approx(2 * 1502.5)
    assert saved_ms(before, after) == pytest.approx(1502.5)
    assert saved_ms(after, after) == 0


class Named(MemoryFiles):
    """A store that knows what was written to it."""

    created: tuple[str, ...] = ()

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        self.created += (name,)
        super().create(name, data, timeout_s)


def test_an_environment_is_written_once_and_not_with_each_record(tmp_path: Path) -> None:
    files = Named()
    sender, store = exchange(files, tmp_path)
    store.put_environment(ENVIRONMENT)
    for number in range(3):
        sender.publish(record(measured("a"), problem=number), 1.0)
    assert sum(name.endswith("environment.json") for name in files.created) == 1
    assert len(files.created) == 4
