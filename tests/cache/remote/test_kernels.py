"""Kernels that a bucket has expired, while editions still describe them."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import KernelEntry, Record, Store, open_store
from inductor_plugin.cache.remote import kernels, tier
from inductor_plugin.cache.remote.answer import tell_of
from inductor_plugin.cache.remote.edition import Edition, edition_of
from inductor_plugin.cache.remote.exchange import Exchange
from inductor_plugin.cache.remote.kernels import KernelTraffic
from inductor_plugin.cache.remote.name import Place, environment_name
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.tier import RemoteTier
from inductor_plugin.cache.trust.keys import Signer, new_key
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.errors import CacheError
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)
from tests.support.remote.files import MemoryFiles
from tests.support.remote.tiers import PLACE
from tests.support.trust.payload import FRIEND, LIBRARY, STRANGER, Kernel


def exchange(files: MemoryFiles, path: Path) -> tuple[Exchange, Store]:
    store = open_store(path)
    store.put_environment(ENVIRONMENT)
    return Exchange(files, store, kernels=True, trusted=True), store


def won_by(entry: KernelEntry, problem: int = 1) -> Record:
    won = measured("a", kernel=entry.digest)
    return record(won, problem=problem, decision=decision("a"))


def place_of(written: Record) -> Place:
    return Place(written.environment, written.op, written.digest)


def expired(tmp_path: Path) -> MemoryFiles:
    """Return a remote with a record that describes a kernel whose files are gone."""
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here")
    here.publish(won_by(put_library(store)), 1.0)
    expire(files)
    return files


def expire(files: MemoryFiles) -> None:
    for name in [name for name in files.objects if "/files/" in name]:
        del files.objects[name]


@pytest.mark.parametrize("library", [b"library", b"other bytes, of another build"])
def test_who_builds_a_kernel_that_has_expired_writes_it_and_others_find_it(
    library: bytes, tmp_path: Path
) -> None:
    files = expired(tmp_path)
    there, store = exchange(files, tmp_path / "there")
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert (answer.hit, answer.expired, answer.damage, answer.error) == (True, True, (), None)
    entry = store.put_kernel(kernel_key(), {"kernel.so": library})
    there.publish(won_by(entry), 1.0, answer.chain)
    third, other = exchange(files, tmp_path / "third")
    answer = third.fetch([PLACE], 1.0)[PLACE]
    assert not answer.expired
    kernel = other.kernel(entry.digest)
    assert kernel is not None
    assert kernel.path("kernel.so").read_bytes() == library
    assert third.take_amounts().kernels == 1


@pytest.mark.parametrize("content", [b"damaged", b"x" * 100_000], ids=["other bytes", "larger"])
def test_who_builds_a_kernel_that_was_damaged_writes_it_again(
    content: bytes, tmp_path: Path
) -> None:
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here")
    here.publish(won_by(put_library(store)), 1.0)
    good = dict(files.objects)
    for name in [name for name in files.objects if "/files/" in name]:
        files.objects[name] = content
    there, store = exchange(files, tmp_path / "there")
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert (answer.expired, len(answer.damage), answer.error) == (True, 1, None)
    there.publish(won_by(put_library(store)), 1.0, answer.chain)
    assert {name: files.objects[name] for name in good if "/files/" in name} == {
        name: data for name, data in good.items() if "/files/" in name
    }


def test_the_same_kernel_is_written_again_though_its_description_is_no_news(tmp_path: Path) -> None:
    files = expired(tmp_path)
    there, _ = exchange(files, tmp_path / "there")
    there.fetch([PLACE], 1.0)
    here, store = exchange(files, tmp_path / "here")  # which has it, and does not know
    here.publish(won_by(put_library(store)), 1.0)
    assert not any("/files/" in name for name in files.objects)
    again, store = exchange(files, tmp_path / "again")
    assert again.fetch([PLACE], 1.0)[PLACE].expired
    entry = store.put_kernel(kernel_key(), {"kernel.so": b"library", "source.cpp": b"int f();"})
    again.publish(won_by(entry), 1.0)
    assert sum("/files/" in name for name in files.objects) == 2
    requests = files.requests["create"]
    again.publish(won_by(entry), 1.0)  # once is enough
    assert files.requests["create"] == requests


def test_a_process_that_has_built_an_expired_kernel_writes_it_before_it_ends(
    tmp_path: Path,
) -> None:
    signer, files = new_key(tmp_path / "key"), MemoryFiles()
    trust = Trust({signer.public: ""})
    options = RemoteOptions("memory://x", 60.0, kernels=True, signing_key=str(tmp_path / "key"))

    def behind(name: str) -> tuple[RemoteTier, Store]:
        store = open_store(tmp_path / name, trust=trust)
        return RemoteTier(store, options, lambda _: files), store

    first, store = behind("here")
    store.put_record(won_by(put_library(store)))
    first.send(*PLACE)
    first.close()
    assert sum("/files/" in name for name in files.objects) == 2
    expire(files)
    second, store = behind("there")
    question = second.look_up(*PLACE)
    assert question is not None
    assert second.wait(question, 60.0)
    put_library(store)  # the compile goes on without it
    second.close()
    assert sum("/files/" in name for name in files.objects) == 2


@dataclass
class SlowKernels(MemoryFiles):
    """A store whose kernels arrive when ``go`` is set; ``parts`` has the number of files of each request."""

    reading: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    parts: list[int] = field(default_factory=list[int])

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        if any("/files/" in name for name in names):
            self.parts.append(len(names))
            self.reading.set()
            self.go.wait(5.0)
        return super().read(names, limits, timeout_s)


def test_a_kernel_on_its_way_is_no_hung_client_and_keeps_no_other_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tier, "_READ_STEPS", 0)
    monkeypatch.setattr(tier, "_SLACK_S", 0.05)
    monkeypatch.setattr(kernels, "_RATE_BYTES_S", 1)
    signer, files = new_key(tmp_path / "key"), SlowKernels()
    store = open_store(tmp_path / "here")
    here = Exchange(files, store, kernels=True, signer=signer)
    large, small = won_by(put_library(store)), record(measured("b"), problem=2)
    files.go.set()
    for written in (large, small):
        here.publish(written, 1.0)
    files.go.clear()
    files.reading.clear()
    options = RemoteOptions("memory://x", 0.05, kernels=True)
    there: Any = RemoteTier(
        open_store(tmp_path / "there", trust=Trust({signer.public: ""})), options, lambda _: files
    )
    with there._changed:  # asked for together
        slow, quick = there.look_up(*place_of(large)), there.look_up(*place_of(small))
    assert quick.done.wait(5.0)
    assert quick.hit
    assert files.reading.wait(5.0)
    time.sleep(0.15)
    assert not slow.done.is_set()
    assert there.look_up(*PLACE[:2], "0" * 64) is not None
    assert "cannot be interrupted" not in caplog.text
    files.go.set()
    assert slow.done.wait(5.0)
    assert slow.hit
    there.close()


def test_kernels_are_fetched_in_parts_and_those_of_one_kernel_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_PART_BYTES", 25)
    files = SlowKernels()
    files.go.set()
    here, store = exchange(files, tmp_path / "here")
    first = put_library(store)  # of 15 bytes in two files
    second = store.put_kernel(kernel_key("l"), {"kernel.so": b"another library"})
    written = [won_by(first), won_by(second, 2), won_by(first, 3), record(measured("b"), problem=4)]
    for each in written:
        here.publish(each, 1.0)
    files.parts.clear()
    there, store = exchange(files, tmp_path / "there")
    parts = [{*part} for part in there.fetch_parts([*map(place_of, written)], 1.0)]
    places = [place_of(each) for each in written]
    assert parts[0] == {places[3]}
    assert sorted(parts[1:], key=len) == [{places[1]}, {places[0], places[2]}]
    assert sorted(files.parts) == [1, 2]
    assert None not in [store.kernel(entry.digest) for entry in (first, second)]


@pytest.mark.parametrize("gone", ["kernel", "file", "content"])
def test_a_kernel_that_is_pruned_before_it_is_read_does_not_keep_its_record(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outgoing = KernelTraffic.outgoing

    def pruned(self: KernelTraffic, won: Record, edition: Edition | None) -> KernelEntry | None:
        entry = outgoing(self, won, edition)
        assert entry is not None
        if gone == "file":
            entry.path("kernel.so").unlink()
        elif gone == "content":  # it was built again
            entry.path("kernel.so").write_bytes(b"another")
        else:
            shutil.rmtree(entry.folder)
        return entry

    monkeypatch.setattr(KernelTraffic, "outgoing", pruned)
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here")
    chain = here.publish(won_by(put_library(store)), 1.0)
    assert chain.edition is not None
    assert not chain.edition.kernels
    there, store = exchange(files, tmp_path / "there")
    assert there.fetch([PLACE], 1.0)[PLACE].hit


def test_a_full_disk_of_this_machine_is_no_fault_of_the_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here")
    here.publish(won_by(put_library(store)), 1.0)

    def full(*_: object) -> KernelEntry:
        raise CacheError("free some space")

    there, store = exchange(files, tmp_path / "there")
    monkeypatch.setattr(store, "put_kernel", full)
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert (answer.hit, answer.error, answer.unkept) == (True, None, "free some space")
    for _ in range(2):
        tell_of([answer], "memory://x")
    assert [each.getMessage() for each in caplog.records] == ["inductor-plugin: free some space"]


def test_a_kernel_that_cannot_be_read_now_is_neither_expired_nor_damaged(tmp_path: Path) -> None:
    @dataclass
    class Failing(MemoryFiles):
        def _read(self, name: str, limit: int) -> bytes | OSError:
            return OSError(5, "500") if "/files/" in name else super()._read(name, limit)

    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here")
    here.publish(won_by(put_library(store)), 1.0)
    assert environment_name(PLACE.environment) in files.objects
    there, store = exchange(Failing(files.objects), tmp_path / "there")
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert (answer.hit, answer.expired, answer.damage) == (True, False, ())
    assert str(answer.error) == "[Errno 5] 500"
    assert list(store.iter_kernels()) == []


@pytest.mark.parametrize(
    ("origin", "signed_by", "signer", "sent"),
    [
        ("built", None, FRIEND, True),  # nobody has signed what is there
        ("built", STRANGER, FRIEND, True),
        ("built", FRIEND, FRIEND, False),
        ("built", STRANGER, None, False),
        ("taken", None, FRIEND, True),
        ("taken", STRANGER, FRIEND, False),  # nobody signs the code of others
        ("gone", STRANGER, FRIEND, False),
        ("gone", None, FRIEND, False),
    ],
)
def test_a_kernel_that_is_there_is_sent_again_where_a_signature_is_new(
    origin: str, signed_by: Signer | None, signer: Signer | None, sent: bool, tmp_path: Path
) -> None:
    kernel, store = Kernel(tmp_path / "files", {LIBRARY: b"x"}), open_store(tmp_path / "cache")
    digest = kernel.entry.digest
    if origin != "gone":
        further = {"taken": {"by": "operator", "source": "x"}} if origin == "taken" else {}
        store.put_kernel(kernel.entry.key, {LIBRARY: b"x"}, None, further)
    fields = kernel.fields if signed_by is None else kernel.signed(signed_by).fields
    won = won_by(kernel.entry)
    traffic = KernelTraffic(
        MemoryFiles(), store, store.add_counts, trusted=False, signer=signer, source="x"
    )
    entry = traffic.outgoing(won, edition_of(won, {digest: fields}))
    assert (entry is not None) is sent
    assert (traffic.outgoing(won, None) is not None) is (origin != "gone")
    assert traffic.outgoing(record(measured("a")), None) is None  # it has no kernel
