"""Kernels that a bucket has expired, while editions still describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import KernelEntry, Record, Store, open_store
from inductor_plugin.cache.remote.exchange import Exchange
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.tier import RemoteTier
from inductor_plugin.cache.trust.keys import new_key
from inductor_plugin.cache.trust.policy import Trust
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


def exchange(files: MemoryFiles, path: Path) -> tuple[Exchange, Store]:
    store = open_store(path)
    store.put_environment(ENVIRONMENT)
    return Exchange(files, store, kernels=True, trusted=True), store


def won_by(entry: KernelEntry) -> Record:
    return record(measured("a", kernel=entry.digest), decision=decision("a"))


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


def test_who_builds_a_kernel_that_was_damaged_writes_it_again(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, store = exchange(files, tmp_path / "here")
    here.publish(won_by(put_library(store)), 1.0)
    good = dict(files.objects)
    for name in [name for name in files.objects if "/files/" in name]:
        files.objects[name] = b"damaged"
    there, store = exchange(files, tmp_path / "there")
    answer = there.fetch([PLACE], 1.0)[PLACE]
    assert (answer.expired, len(answer.damage)) == (True, 1)
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

    def tier(name: str) -> tuple[RemoteTier, Store]:
        store = open_store(tmp_path / name, trust=trust)
        return RemoteTier(store, options, lambda _: files), store

    first, store = tier("here")
    store.put_record(won_by(put_library(store)))
    first.send(*PLACE)
    first.close()
    assert sum("/files/" in name for name in files.objects) == 2
    expire(files)
    second, store = tier("there")
    question = second.look_up(*PLACE)
    assert question is not None
    assert second.wait(question, 60.0)
    put_library(store)  # the compile goes on without it
    second.close()
    assert sum("/files/" in name for name in files.objects) == 2
