"""What was written is read back: lost editions are told once, and none is forgotten because of a fault."""

from __future__ import annotations

import pytest

from inductor_plugin.cache.remote import receipts
from inductor_plugin.cache.remote.edition import edition_of
from inductor_plugin.cache.remote.name import Place
from tests.support.cache.records import record
from tests.support.remote.files import FaultyFiles, MemoryFiles


def test_editions_with_other_bytes_other_sizes_and_missing_ones_are_lost() -> None:
    contents = {"same": b"one", "other": b"two", "longer": b"three", "gone": b"four"}
    written = receipts.Receipts()
    for name, data in contents.items():
        written.add(Place("e", "mm", name), name, data)
    files = MemoryFiles({"same": b"one", "other": b"TWO", "longer": b"three and more"})
    lost, read_bytes = written.lost(files, 1.0)
    assert [place.digest for place in lost] == ["other", "longer", "gone"]
    assert read_bytes == 6
    assert not written.is_open
    assert written.lost(files, 1.0) == ([], 0)


def test_damaged_editions_are_lost_once_and_replaced_ones_each_time() -> None:
    """A store that damages all it sends would have a record written until no edition is left (`MOST_EDITIONS`)."""
    written, theirs = receipts.Receipts(), edition_of(record())
    place, other = Place("e", "mm", "spoiled"), theirs.place
    files = MemoryFiles({"0": b"spoiled", "1": b"spoiled", "2": theirs.dump(), "3": theirs.dump()})
    for spoiled, replaced, lost in (("0", "2", [place, other]), ("1", "3", [other])):
        written.add(place, spoiled, b"of this machine")
        written.add(other, replaced, b"of this machine")
        assert written.lost(files, 1.0)[0] == lost
    assert not written.is_open


def test_a_fault_in_the_middle_forgets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "_TOGETHER", 1)
    written = receipts.Receipts()
    for name in ("first", "second"):
        written.add(Place("e", "mm", name), name, b"data")
    files = FaultyFiles(MemoryFiles())
    reading = files.read

    def read_once(*arguments: object) -> list[bytes | OSError]:
        result = reading(*arguments)  # type: ignore[arg-type]
        files.failing = 1
        return result

    files.read = read_once  # type: ignore[method-assign]
    with pytest.raises(OSError, match="500"):
        written.lost(files, 1.0)
    files.read, files.failing = reading, 0  # type: ignore[method-assign]
    assert [place.digest for place in written.lost(files, 1.0)[0]] == ["first", "second"]
