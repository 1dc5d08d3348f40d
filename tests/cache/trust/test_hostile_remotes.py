"""Objects of an attacker in a remote: no kernel of theirs is fetched, or handed out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store, document, open_store
from inductor_plugin.cache.entry import parse_entry
from inductor_plugin.cache.remote.chain import read_chains
from inductor_plugin.cache.remote.descriptions import MOST, Description
from inductor_plugin.cache.remote.disk import LocalFiles
from inductor_plugin.cache.remote.edition import Edition, edition_of, parse_edition, united
from inductor_plugin.cache.remote.exchange import Answer, Exchange
from inductor_plugin.cache.remote.name import Place, edition_name, file_name
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.tier import RemoteTier
from inductor_plugin.cache.remote.transfer import TransferPart, pull, push
from inductor_plugin.cache.trust.keys import Signer, new_key
from inductor_plugin.cache.trust.policy import Trust
from tests.support.cache.records import ENVIRONMENT, decision, measured, put_library, record
from tests.support.remote.files import MemoryFiles
from tests.support.trust.payload import (
    FRIEND,
    LIBRARY,
    STRANGER,
    TRUST,
    Kernel,
    load_all,
    sha256,
)

PLACE = Place(record().environment, record().op, record().digest)


def edition(kernel: Kernel) -> Edition:
    """Return a record that says that a kernel has won."""
    digest = kernel.fields["digest"]
    row = measured("a", kernel=digest)
    return edition_of(record(row, decision=decision("a")), {digest: kernel.fields})


def holding(kernel: Kernel) -> MemoryFiles:
    """Return a remote with that record, and the kernel's files under the names of their content."""
    objects = {edition_name(PLACE, 0): edition(kernel).dump()}
    for content in kernel.files.values():
        objects[file_name(PLACE.environment, sha256(content))] = content
    return MemoryFiles(objects)


def fetched(files: Any, path: Path) -> tuple[Answer, Store]:
    store = open_store(path, trust=TRUST)
    store.put_environment(ENVIRONMENT)
    answer = Exchange(files, store, kernels=True).fetch([PLACE], 1.0)[PLACE]
    assert load_all(store) == 0
    return answer, store


def unsigned(kernel: Kernel) -> str:
    return "nobody has signed it"


def of_a_stranger(kernel: Kernel) -> str:
    kernel.signed(STRANGER)
    return "not by a key in trusted_keys"


def with_another_library(kernel: Kernel) -> str:
    kernel.signed().with_library(kernel.files[LIBRARY] + b"\0")
    return "changed after it was signed"


def of_another_source(kernel: Kernel) -> str:
    kernel.signed().with_key(source="another")
    return "changed after it was signed"


def that_says_it_is_trusted(kernel: Kernel) -> str:
    kernel.fields["taken"] = {"by": "operator", "source": "you"}
    return "nobody has signed it"


@pytest.mark.parametrize(
    "change",
    [unsigned, of_a_stranger, with_another_library, of_another_source, that_says_it_is_trusted],
)
def test_a_kernel_that_no_friend_has_signed_is_not_even_fetched(
    change: Callable[[Kernel], str], kernel: Kernel, tmp_path: Path
) -> None:
    why = change(kernel)
    files = holding(kernel)
    answer, store = fetched(files, tmp_path / "cache")
    assert why in answer.refused
    assert answer.hit  # its record is data
    assert files.requests["read"] == 2  # editions alone
    assert list(store.iter_kernels()) == []


@pytest.mark.parametrize("content", [b"", b"evil", None])
def test_a_file_that_is_not_the_signed_one_is_damage(
    content: bytes | None, kernel: Kernel, tmp_path: Path
) -> None:
    files = holding(kernel.signed())
    name = file_name(PLACE.environment, sha256(kernel.files[LIBRARY]))
    files.objects[name] = content if content is not None else kernel.files[LIBRARY][:-1] + b"\1"
    answer, _ = fetched(files, tmp_path / "cache")
    assert "its checksum does not match its name" in answer.damage[0]


def under_another_digest(kernel: Kernel) -> str:
    kernel.fields["digest"] = "0" * 64
    return "is not that of its key"


def with_a_file_above(kernel: Kernel) -> str:
    kernel.fields["files"] = {"../kernel.so": sha256(kernel.files[LIBRARY])}
    return "outside its folder"


def with_a_hidden_file(kernel: Kernel) -> str:
    kernel.fields["files"] = {"..--x.so": sha256(kernel.files[LIBRARY])}
    return "has a file named"


def without_files(kernel: Kernel) -> str:
    kernel.fields["files"] = {}
    return "0 files"


def as_large_as_a_disk(kernel: Kernel) -> str:
    kernel.fields["bytes"] = 1 << 40
    return "the limits are"


def with_a_name_for_a_checksum(kernel: Kernel) -> str:
    kernel.fields["files"] = {LIBRARY: "../../../evil"}
    return "is no SHA-256"


@pytest.mark.parametrize(
    "change",
    [
        under_another_digest, with_a_file_above, with_a_hidden_file, without_files, as_large_as_a_disk,
        with_a_name_for_a_checksum,
    ],
)  # fmt: skip
def test_what_describes_no_kernel_is_damage(
    change: Callable[[Kernel], str], kernel: Kernel, tmp_path: Path
) -> None:
    digest = kernel.fields["digest"]
    why = change(kernel.signed())
    described = replace(edition(kernel).record, decision=decision("a"))
    described = replace(described, candidates={"a": measured("a", kernel=digest)})
    files = holding(kernel)
    files.objects[edition_name(PLACE, 0)] = edition_of(described, {digest: kernel.fields}).dump()
    answer, _ = fetched(files, tmp_path / "cache")
    assert why in answer.damage[0]


@pytest.mark.parametrize("named", ["{}/evil.so", "../../../evil.so", "x@{}/evil.so", ""])
def test_a_path_where_a_record_names_its_kernel_is_taken_as_text_and_loads_nothing(
    named: str, tmp_path: Path, payload: bytes, mark: Path
) -> None:
    """Nothing is refused: such a record is data like any other, and its text is the name of no kernel."""
    (tmp_path / "evil.so").write_bytes(payload)
    name = named.format(tmp_path)
    described = edition_of(record(measured("a", kernel=name), decision=decision("a")))
    answer, store = fetched(
        MemoryFiles({edition_name(PLACE, 0): described.dump()}), tmp_path / "cache"
    )
    assert (answer.hit, answer.refused, answer.damage) == (True, "", ())
    taken = store.record(*PLACE)
    assert taken is not None
    assert taken.candidates["a"].kernel == name
    assert store.kernel(name) is None
    assert not mark.exists()


@pytest.mark.parametrize("order", [1, -1])
def test_an_unsigned_description_does_not_hide_a_signed_one(
    order: int, kernel: Kernel, tmp_path: Path, payload: bytes
) -> None:
    other = Kernel(tmp_path / "other", {LIBRARY: payload + b"\0"})
    first, second = [edition(kernel.signed()), edition(other)][::order]
    both = united(first, second)
    assert both.kernels[kernel.fields["digest"]] == kernel.fields
    assert united(second, first) == both


def pushed(path: Path, remote: LocalFiles, signer: Signer) -> int:
    """Push an own build, signed by a key; return the number of editions that were written."""
    store = open_store(path)
    store.put_environment(ENVIRONMENT)
    row = measured("a", kernel=put_library(store).digest)
    store.put_record(record(row, decision=decision("a")))
    return push(store, remote, TransferPart(kernels=True), signer=signer).amounts.sent


def pulled(path: Path, remote: LocalFiles, signer: Signer) -> tuple[int, int]:
    """Pull with trust in one key; return the numbers of kernels that were fetched and refused."""
    store = open_store(path, trust=Trust({signer.public: ""}))
    amounts = pull(store, remote, TransferPart(kernels=True)).amounts
    return amounts.kernels, amounts.refused


def first_edition(remote: LocalFiles) -> tuple[Edition, str, Description]:
    """Return the first edition of the record, with digest and description of its kernel."""
    (content,) = remote.read([edition_name(PLACE, 0)], [1 << 20], 1.0)
    assert isinstance(content, bytes)
    first = parse_edition(content, PLACE)
    ((digest, known),) = first.kernels.items()
    return first, digest, known


def false_build(known: Description, **fields: Any) -> dict[str, Any]:
    """Return another description of a kernel, signed by a stranger unless signatures are given."""
    described: dict[str, Any] = {**known, "created": 1.0, "signatures": {}, **fields}
    if not described["signatures"]:
        entry = parse_entry(document.dump(described), Path())
        described["signatures"] = {STRANGER.public: STRANGER.sign(entry)}
    return described


def add_edition(remote: LocalFiles, number: int, **fields: Any) -> None:
    """Write an edition as an attacker does: with the first one's record and another description of its kernel."""
    first, digest, known = first_edition(remote)
    whole = Edition(first.record, {digest: false_build(known, **fields)})
    remote.create(edition_name(PLACE, number), whole.dump(), 1.0)


def test_a_false_signature_hides_no_true_one(tmp_path: Path) -> None:
    remote = LocalFiles(tmp_path / "remote")
    assert pushed(tmp_path / "signer", remote, FRIEND) == 1
    add_edition(remote, 1, signatures={"x": "y"})
    add_edition(remote, 2, created=0.5, signatures={FRIEND.public: "A" * 86})
    assert pulled(tmp_path / "a", remote, FRIEND) == (1, 0)


def test_many_descriptions_of_strangers_hide_no_signed_one(tmp_path: Path) -> None:
    remote = LocalFiles(tmp_path / "remote")
    assert pushed(tmp_path / "signer", remote, FRIEND) == 1
    for number in range(1, 12):
        add_edition(remote, number, bytes=100 + number)  # before 15 as text
    assert pulled(tmp_path / "a", remote, FRIEND) == (1, 0)
    (tmp_path / "remote" / edition_name(PLACE, 0)).unlink()  # it has expired
    assert pushed(tmp_path / "signer", remote, FRIEND) == 1
    assert pulled(tmp_path / "b", remote, FRIEND) == (1, 0)


def test_many_signed_builds_of_a_stranger_hide_none_that_a_third_machine_passes_on(
    tmp_path: Path,
) -> None:
    remote = LocalFiles(tmp_path / "remote")
    assert pushed(tmp_path / "signer", remote, FRIEND) == 1
    first, digest, known = first_edition(remote)
    head, *rest = [
        false_build(known, bytes=100 + number) for number in range(MOST)
    ]  # before 15 as text
    hostile = Edition(first.record, {digest: head}, {digest: tuple(rest)})
    remote.create(edition_name(PLACE, 1), hostile.dump(), 1.0)
    third = open_store(tmp_path / "third")  # it trusts neither
    third.put_environment(ENVIRONMENT)
    third.put_record(record(measured("b")))
    assert push(third, remote, TransferPart()).amounts.sent == 1
    for number in (0, 1):  # they have expired
        (tmp_path / "remote" / edition_name(PLACE, number)).unlink()
    assert pulled(tmp_path / "a", remote, FRIEND) == (1, 0)


def test_a_signer_writes_where_its_signature_is_missing_or_false(tmp_path: Path) -> None:
    remote = LocalFiles(tmp_path / "remote")
    assert pushed(tmp_path / "signer", remote, FRIEND) == 1
    first = tmp_path / "remote" / edition_name(PLACE, 0)
    add_edition(remote, 1, signatures={FRIEND.public: "A" * 86})
    first.unlink()  # it has expired
    assert pulled(tmp_path / "a", remote, FRIEND) == (0, 1)
    assert pushed(tmp_path / "signer", remote, FRIEND) == 1
    assert pulled(tmp_path / "b", remote, FRIEND) == (1, 0)
    assert pushed(tmp_path / "signer", remote, FRIEND) == 0


def test_a_new_key_signs_what_the_old_one_has_signed(tmp_path: Path) -> None:
    remote = LocalFiles(tmp_path / "remote")
    assert pushed(tmp_path / "signer", remote, STRANGER) == 1
    assert pulled(tmp_path / "early", remote, FRIEND) == (0, 1)
    assert pushed(tmp_path / "signer", remote, FRIEND) == 1
    assert pushed(tmp_path / "signer", remote, FRIEND) == 0
    assert pulled(tmp_path / "new", remote, FRIEND) == (1, 0)
    assert pulled(tmp_path / "old", remote, STRANGER) == (1, 0)


def test_pull_says_what_it_refused_and_takes_the_records(kernel: Kernel, tmp_path: Path) -> None:
    for name, content in holding(kernel).objects.items():
        path = tmp_path / "remote" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    store = open_store(tmp_path / "cache", trust=TRUST)
    done = pull(
        store, LocalFiles(tmp_path / "remote"), TransferPart(kernels=True), source="file:///remote"
    )
    assert (done.changed, done.failed, done.amounts.refused) == (1, 0, 1)
    assert "file:///remote holds native code that is not trusted" in done.refused
    assert load_all(store) == 0
    chain = read_chains(lambda n, m: LocalFiles(tmp_path / "remote").read(n, m, 1.0), [PLACE])
    assert chain[PLACE].edition is not None


def tier(store: Store, files: MemoryFiles, **options: Any) -> RemoteTier:
    return RemoteTier(store, RemoteOptions("memory://x", 5.0, **options), lambda _: files)


def test_a_compile_is_told_once_that_kernels_of_the_remote_are_refused(
    kernel: Kernel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path / "cache", trust=TRUST)
    remote = tier(store, holding(kernel), kernels=True)
    question = remote.look_up(*PLACE)
    assert question is not None
    assert remote.wait(question, 5.0)
    remote.close()
    assert caplog.text.count("memory://x holds native code that is not trusted") == 1
    assert store.counters()["remote_refused"] == 1
    assert load_all(store) == 0


def test_what_a_machine_writes_behind_its_compiles_is_signed(tmp_path: Path) -> None:
    signer, files = new_key(tmp_path / "key"), MemoryFiles()
    store = open_store(tmp_path / "cache")
    row = measured("a", kernel=put_library(store).digest)
    store.put_record(record(row, decision=decision("a")))
    remote = tier(store, files, kernels=True, signing_key=str(tmp_path / "key"))
    remote.send(*PLACE)
    remote.close()
    there = open_store(tmp_path / "there", trust=Trust({signer.public: ""}))
    Exchange(files, there, kernels=True).fetch([PLACE], 1.0)
    assert [set(entry.signatures) for entry in there.iter_kernels()] == [{signer.public}]


def test_a_signing_key_that_others_may_read_writes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    files, store = MemoryFiles(), open_store(tmp_path / "cache")
    store.put_record(record(measured("a"), decision=decision("a")))
    remote = tier(store, files, kernels=True, signing_key=str(tmp_path / "key"))
    remote.send(*PLACE)
    remote.close()
    assert "the remote cache is not used: the signing key" in caplog.text
    assert files.objects == {}


def test_a_signed_kernel_is_fetched_and_says_who_vouches_for_it(
    kernel: Kernel, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "cache", trust=TRUST)
    Exchange(holding(kernel.signed()), store, kernels=True, source="s3://x").fetch([PLACE], 1.0)
    (entry,) = store.iter_kernels()
    assert entry.taken is not None
    assert (entry.taken.by, entry.taken.source) == ("signature", "s3://x")
    assert set(entry.signatures) == {FRIEND.public}
