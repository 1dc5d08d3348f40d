"""Editions of a record: what they carry, how two become one, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import document, open_store
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.remote.descriptions import MOST
from inductor_plugin.cache.remote.edition import (
    MAX_KERNEL_BYTES,
    Edition,
    edition_of,
    is_news,
    parse_edition,
    united,
)
from tests.support.cache.records import decision, measured, put_library, record
from tests.support.trust.payload import FRIEND, LIBRARY, STRANGER, Kernel

OTHER = replace(record(measured("a")), digest="0" * 64)


def kernels(tmp_path: Path) -> dict[str, dict[str, Any]]:
    entry = put_library(open_store(tmp_path / "cache"))
    return {entry.digest: document.load((entry.folder / ENTRY).read_bytes())}


def test_an_edition_is_read_as_it_was_written_without_the_pin_that_protects_a_record_in_one_cache(
    tmp_path: Path,
) -> None:
    edition = edition_of(record(measured("a"), pinned=True), kernels(tmp_path))
    again = parse_edition(edition.dump(), edition.place)
    assert again == edition
    assert not again.record.pinned
    (digest,) = again.kernels
    entry = again.kernel(digest)
    assert entry is not None
    assert set(entry.files) == {"kernel.so", "source.cpp"}


def test_an_edition_of_both_has_the_measurements_of_both_and_says_nothing_new_to_itself() -> None:
    left, right = edition_of(record(measured("a"))), edition_of(record(measured("b", 2.0)))
    both = united(left, right)
    assert set(both.record.candidates) == {"a", "b"}
    assert united(right, left) == both
    assert is_news(left, both)
    later = Edition(replace(both.record, updated=2000.0))
    assert not is_news(both, united(both, later))
    assert not is_news(both, united(both, left))


def test_of_two_builds_of_one_kernel_all_machines_keep_the_same(tmp_path: Path) -> None:
    first = kernels(tmp_path)
    second = {name: {**fields, "created": 5.0} for name, fields in first.items()}
    left, other = edition_of(record(), first), edition_of(record(), second)
    assert united(left, other).kernels == united(other, left).kernels


def test_other_builds_travel_and_the_one_that_counts_here_comes_first(tmp_path: Path) -> None:
    first, second = (Kernel(tmp_path / name, {LIBRARY: name.encode()}) for name in ("one", "two"))
    digest = first.fields["digest"]
    left = edition_of(record(), {digest: first.signed(FRIEND).fields})
    right = edition_of(record(), {digest: second.signed(STRANGER).fields})
    both = united(left, right, {FRIEND.public})
    assert both.kernels == left.kernels
    assert both.others == {digest: (second.fields,)}
    assert is_news(left, both)
    read = parse_edition(both.dump(), both.place)
    assert read == both
    assert united(None, read, {STRANGER.public}).kernels == right.kernels
    assert united(both, both, {FRIEND.public}) == both
    assert "others" not in document.load(left.dump())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "checksum"),
        (edition_of(OTHER).dump(), "another record"),
        (document.dump({"format": 2, "record": {}, "kernels": {}}), "format"),
        (document.dump({"format": 1, "record": [], "kernels": {}}), "not an object"),
        (document.dump({"format": 1, "kernels": {}}), "record is missing"),
        (document.dump({"format": 1, "record": {}, "kernels": {"a": 1}}), "not an object"),
        (document.dump({"format": 1, "record": {}, "kernels": {}, "others": {"a": [1]}}), "object"),
    ],
)
def test_what_is_no_edition_of_this_record_is_refused(data: bytes, reason: str) -> None:
    place = edition_of(record()).place
    with pytest.raises(ValueError, match=reason):
        parse_edition(data, place)


def test_an_edition_that_is_nested_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    text = json.dumps({"format": 1, "record": {}, "kernels": {}})
    body = text[1:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    data = document.dump({"a": 1})
    forged = _with_checksum(data, body.encode())
    with pytest.raises((ValueError, RecursionError)):
        parse_edition(forged, edition_of(record()).place)


def _with_checksum(_data: bytes, body: bytes) -> bytes:
    import hashlib

    return b'{\n  "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"files": {"../../x": "0" * 64}}, "outside its folder"),
        ({"files": {"a b": "0" * 64}}, "a file named"),
        ({"files": {"kernel.so": "../x"}}, "no SHA-256"),
        ({"files": {}}, "limits"),
        ({"bytes": MAX_KERNEL_BYTES + 1}, "limits"),
        ({"bytes": -1}, "whole number"),
        ({"digest": "0" * 64}, "not that of its key"),
    ],
)
def test_a_kernel_that_is_described_wrongly_is_refused(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    digest, fields = next(iter(kernels(tmp_path).items()))
    edition = edition_of(record(), {digest: {**fields, **change}})
    with pytest.raises(ValueError, match=reason):
        edition.kernel(digest)


def test_a_kernel_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    fields = next(iter(kernels(tmp_path).values()))
    with pytest.raises(ValueError, match="is described as"):
        edition_of(record(decision=decision("a")), {"0" * 64: fields}).kernel("0" * 64)


@pytest.mark.parametrize(("count", "taken"), [(16, True), (17, False)])
def test_a_kernel_of_the_largest_size_is_taken(count: int, taken: bool, tmp_path: Path) -> None:
    digest, fields = next(iter(kernels(tmp_path).items()))
    files = {f"{number}.so": "0" * 64 for number in range(count)}
    edition = edition_of(record(), {digest: {**fields, "files": files, "bytes": MAX_KERNEL_BYTES}})
    if taken:
        assert edition.kernel(digest) is not None
        assert edition.kernel(digest, 1) is None  # there is one build
        return
    with pytest.raises(ValueError, match="limits"):
        edition.kernel(digest)


def test_of_more_builds_than_any_edition_has_the_first_are_read(tmp_path: Path) -> None:
    digest, fields = next(iter(kernels(tmp_path).items()))
    others = tuple({**fields, "created": float(number)} for number in range(MOST + 3))
    whole = Edition(record(), {digest: fields}, {digest: others})
    assert parse_edition(whole.dump(), whole.place).descriptions(digest) == (
        fields,
        *others[: MOST - 1],
    )
