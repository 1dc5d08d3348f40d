"""Chains of editions that have gaps, damage, and more writers than there are names; those that are kept are used once, if whole and young."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.remote import chain as chain_module
from inductor_plugin.cache.remote.chain import Chain, KnownChains, read_chains
from inductor_plugin.cache.remote.edition import MAX_BYTES, REFINEMENTS
from inductor_plugin.cache.remote.exchange import Exchange, saved_ms
from inductor_plugin.cache.remote.name import Place, edition_name, file_name
from inductor_plugin.cache.trust.policy import Trust
from tests.support.cache.packs import TRUST
from tests.support.cache.records import decision, measured, put_library, record
from tests.support.remote.files import MemoryFiles

PLACE = Place(record().environment, record().op, record().digest)
NOBODY = Trust()
PAGE = b"<html>sign in</html>"


class Login(MemoryFiles):
    """A proxy that answers for every object with its page."""

    def _read(self, name: str, limit: int) -> bytes | OSError:
        return PAGE


def write(files: MemoryFiles, *names: str, samples: int = 1, trust: Trust = NOBODY) -> None:
    """Write a record as a machine that has measured these candidates and knows of no other."""
    rows = [measured(name, samples_ms=(1.0,) * samples) for name in names]
    store = open_store("/nowhere", memory_only=True, trust=trust)
    Exchange(files, store, kernels=False).publish(record(*rows), 1.0)


def chain_of(files: MemoryFiles) -> Chain:
    def read(names: Sequence[str], limits: Sequence[int]) -> Sequence[bytes | OSError]:
        return files.read(names, limits, 1.0)

    return read_chains(read, [PLACE])[PLACE]


def known(files: MemoryFiles) -> set[str]:
    chain = chain_of(files)
    return set(chain.edition.record.candidates) if chain.edition is not None else set()


@pytest.mark.parametrize("trust", [NOBODY, TRUST], ids=["no key", "a key"])
@pytest.mark.parametrize("expired", [1, 2, 3, 4])
def test_a_bucket_that_expires_by_age_leaves_the_later_editions_readable(
    expired: int, trust: Trust
) -> None:
    files = MemoryFiles()
    for name in "abcde":
        write(files, name)
    for number in range(expired):
        del files.objects[edition_name(PLACE, number)]
    assert known(files) == set("abcde")
    write(files, "f", trust=trust)
    assert edition_name(PLACE, 5) in files.objects
    assert known(files) == set("abcdef")


@pytest.mark.parametrize("trust", [NOBODY, TRUST], ids=["no key", "a key"])
@pytest.mark.parametrize("expired", [6, 7, 8, 11])
def test_what_nobody_reads_since_the_first_editions_have_expired_is_in_the_next_that_is_written(
    expired: int, trust: Trust
) -> None:
    files, names = MemoryFiles(), "abcdefghijkl"
    for name in names:
        write(files, name)
    for number in range(expired):
        del files.objects[edition_name(PLACE, number)]
    assert known(files) == set()
    write(files, "a", trust=trust)  # known to the others: it is written all the same
    assert known(files) == set(names)
    write(files, "z", trust=trust)
    assert known(files) == {*names, "z"}


def test_a_record_that_is_not_there_takes_six_requests_and_no_name_twice() -> None:
    files = MemoryFiles()
    assert chain_of(files) == Chain()
    assert files.requests == {"read": 6}


def test_an_object_that_is_too_large_is_damage_behind_which_others_write() -> None:
    files = MemoryFiles({edition_name(PLACE, 0): bytes(MAX_BYTES + 1)})
    chain = chain_of(files)
    assert chain.error is None
    assert edition_name(PLACE, 0) in chain.damaged[0]
    write(files, "a")
    assert known(files) == {"a"}


def test_what_nobody_would_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    monkeypatch.setattr("inductor_plugin.cache.remote.exchange.MAX_BYTES", 100)
    write(files, "a")
    assert files.objects == {}


def test_a_page_instead_of_every_object_is_a_failure_of_the_store_and_nothing_counts_as_written() -> (
    None
):
    files = Login()
    chain = chain_of(files)
    assert chain.error is not None
    assert "not there" in str(chain.error)
    assert chain.damaged == ()
    assert files.requests["read"] < 6  # not 32 editions, each twice
    with pytest.raises(OSError, match="login page"):
        write(files, "a")
    assert files.objects == {}


def test_machines_that_begin_at_once_leave_room_for_new_candidates() -> None:
    files = MemoryFiles()
    for samples in range(1, 41):
        write(files, "a", samples=samples)
    assert len(files.objects) == REFINEMENTS
    write(files, "b")
    assert known(files) == {"a", "b"}
    assert len(files.objects) == REFINEMENTS + 1


def test_what_a_machine_sees_fail_is_written_behind_any_number_of_samples() -> None:
    files = MemoryFiles()
    for samples in range(1, REFINEMENTS + 3):
        write(files, "a", samples=samples)
    exchange = Exchange(files, open_store("/nowhere", memory_only=True), kernels=False)
    exchange.publish(record(measured("a", None, status="wrong")), 1.0)
    chain = chain_of(files)
    assert chain.edition is not None
    assert chain.edition.record.candidates["a"].status == "wrong"


@pytest.mark.parametrize("content", [b"libr", b"library and what was there before"])
def test_a_part_of_a_kernels_file_is_replaced_by_who_has_the_whole(
    content: bytes, tmp_path: Path
) -> None:
    files, store = MemoryFiles(), open_store(tmp_path / "here")
    entry = put_library(store)
    names = {file_name(PLACE.environment, sha256) for sha256 in entry.files.values()}
    files.objects = dict.fromkeys(names, content)  # the writer was killed
    row = measured("a", kernel=entry.digest)
    kept = store.put_record(record(row, decision=decision("a")))
    Exchange(files, store, kernels=True).publish(kept, 1.0)
    there = open_store(tmp_path / "there")
    fetching = Exchange(files, there, kernels=True, trusted=True)
    assert fetching.fetch([PLACE], 1.0)[PLACE].damage == ()
    assert there.kernel(entry.digest) is not None


def test_a_hostile_time_is_no_counter_that_cannot_be_kept() -> None:
    row = replace(measured("a"), compile_s=1e308, samples_ms=(1e308,))
    assert saved_ms(None, record(row)) <= 1e9


def places(count: int) -> list[Place]:
    return [Place(PLACE.environment, PLACE.op, f"{number:064x}") for number in range(count)]


def test_what_is_read_at_once_has_a_bound_whatever_lies_there() -> None:
    files, at_once = MemoryFiles(), list[int]()

    def read(names: Sequence[str], limits: Sequence[int]) -> Sequence[bytes | OSError]:
        at_once.append(sum(limits))
        return files.read(names, limits, 1.0)

    some = places(300)
    for place in some:
        for number in range(8):
            files.objects[edition_name(place, number)] = b"damaged"
    chains = read_chains(read, some)
    assert max(at_once) <= 64 << 20
    assert all(chain.next == 8 for chain in chains.values())


def test_a_large_edition_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.chain._SMALL_BYTES", 100)
    files = MemoryFiles()
    for name in "abc":
        write(files, name)
    assert known(files) == set("abc")


def test_a_record_that_is_larger_than_any_is_read_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = MemoryFiles()
    for name in "abc":
        write(files, name)
    size = len(files.objects[edition_name(PLACE, 0)])
    monkeypatch.setattr("inductor_plugin.cache.remote.chain._MOST_CHAIN_BYTES", 2 * size)
    chain = chain_of(files)
    assert chain.edition is not None
    assert set(chain.edition.record.candidates) < set("abc")
    assert "the record has more than" in chain.damaged[0]
    assert chain.next == 3


def test_records_that_fill_the_memory_together_are_an_error_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = MemoryFiles()
    write(files, "a")
    monkeypatch.setattr("inductor_plugin.cache.remote.chain._TOGETHER", 2)
    monkeypatch.setattr("inductor_plugin.cache.remote.chain._MOST_BYTES", 100)
    others = places(2)

    def read(names: Sequence[str], limits: Sequence[int]) -> Sequence[bytes | OSError]:
        return files.read(names, limits, 1.0)

    chains = read_chains(read, [PLACE, *others])
    assert chains[PLACE].edition is not None
    assert ["has more than 100 bytes" in str(chains[other].error) for other in others] == [True] * 2


@pytest.mark.parametrize(
    ("chain", "age_s", "usable"),
    [
        (Chain(next=2), 0.0, True),
        (Chain(next=2), 3599.0, True),
        (Chain(next=2), 3600.0, False),
        (Chain(next=2, error=OSError(5, "500")), 0.0, False),
    ],
)
def test_what_was_read_lately_and_whole_is_used_once(
    chain: Chain, age_s: float, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(chain_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    chains = KnownChains()
    chains.add(PLACE, chain)
    clock.now += age_s
    assert chains.take(Place("e", "mm", "other")) is None
    assert chains.take(PLACE) == (chain if usable else None)
    assert chains.take(PLACE) is None


def test_of_too_many_the_first_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "_MOST_KNOWN", 2)
    chains, places = KnownChains(), [Place("e", "mm", name) for name in "abc"]
    for number, place in enumerate(places):
        assert chains.places == places[:number]
        chains.add(place, Chain())
    assert chains.places == places[1:]
