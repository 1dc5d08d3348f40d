"""What editions say of one kernel: signatures join, builds stay apart, and what counts on a machine comes first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from inductor_plugin.cache.entry import MAX_SIGNATURES
from inductor_plugin.cache.remote.descriptions import (
    MOST,
    MOST_OF_A_KEY,
    joined_descriptions,
    signers,
)
from inductor_plugin.cache.trust.keys import Signer, signer_of
from tests.support.trust.payload import FRIEND, LIBRARY, STRANGER, Kernel

FALSE = "A" * 86
Build = Callable[..., dict[str, Any]]


def builders(number: int) -> tuple[Signer]:
    """Return the key of the builder with a number."""
    return (signer_of(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)),)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return a function that describes a build of the kernel, signed by some."""
    number = iter(range(100))

    def build(content: bytes = b"library", *by: object, **fields: object) -> dict[str, Any]:
        kernel = Kernel(tmp_path / str(next(number)), {LIBRARY: content})
        kernel.fields |= {"created": 5.0, **fields}
        for signer in by:
            kernel.signed(signer)
        return kernel.fields

    return build


def test_signatures_of_the_same_files_join_in_any_order(build: Build) -> None:
    said = [build(b"x", FRIEND), build(b"x", STRANGER, created=1.0), build(b"x")]
    (whole,) = joined_descriptions(said, ())
    assert whole["signatures"].keys() == {FRIEND.public, STRANGER.public}
    assert whole["created"] == 1.0
    for order in permutations(said):
        assert joined_descriptions(order, ()) == (whole,)
    assert joined_descriptions((whole, *said), ()) == (whole,)


def test_false_signatures_are_dropped_and_hide_no_true_one(build: Build) -> None:
    false = build(b"x", created=1.0, signatures={FRIEND.public: FALSE, "x": "y"})
    said = [false, build(b"x", FRIEND)]
    for order in (said, said[::-1]):
        (whole,) = joined_descriptions(order, ())
        assert whole["signatures"] == build(b"x", FRIEND)["signatures"]
    assert signers([false]) == set()
    assert signers(said) == {FRIEND.public}


def test_builds_stay_apart_and_what_a_key_has_signed_that_counts_comes_first(build: Build) -> None:
    mine, other, unsigned = build(b"a", FRIEND), build(b"b", STRANGER), build(b"c")
    for order in permutations((mine, other, unsigned)):
        assert joined_descriptions(order, {FRIEND.public})[0] == mine
        assert joined_descriptions(order, {STRANGER.public})[0] == other
        assert joined_descriptions(order, ())[-1] == unsigned


def test_no_number_of_others_takes_the_place_of_what_counts(build: Build) -> None:
    mine = build(b"mine", FRIEND)
    others = [build(bytes([number]), *builders(number)) for number in range(3 * MOST)]
    kept = joined_descriptions([*others, mine], {FRIEND.public})
    assert kept[0] == mine
    assert len(kept) == MOST


def test_many_builds_of_one_signer_leave_room_for_those_of_others(build: Build) -> None:
    theirs = [build(bytes([number]), STRANGER) for number in range(2 * MOST)]
    unsigned = [build(bytes([number])) for number in range(100, 100 + 2 * MOST)]
    last = build(b"longer, so that its text is behind theirs", FRIEND)
    said = [*theirs, *unsigned, last]
    kept = joined_descriptions(
        said, ()
    )  # of a machine that trusts nobody, and writes the next edition
    assert last in kept
    assert sum(each in theirs for each in kept) == MOST_OF_A_KEY
    assert sum(each in unsigned for each in kept) == MOST_OF_A_KEY
    assert joined_descriptions(said[::-1], ()) == kept
    assert joined_descriptions(kept, ()) == kept


def test_where_there_are_too_many_signers_each_has_one_build_before_any_has_two(
    build: Build,
) -> None:
    numbers = [*range(MOST // 2)] * 2
    said = [build(bytes([place]), *builders(number)) for place, number in enumerate(numbers)]
    more = [build(bytes([100 + place]), STRANGER) for place in range(MOST)]
    kept = joined_descriptions([*said, *more], ())
    assert len(kept) == MOST
    assert len(signers(kept)) == MOST // 2 + 1
    assert joined_descriptions(kept, ()) == kept


def test_of_what_describes_no_kernel_nothing_is_kept_beside_one_that_does(build: Build) -> None:
    broken, sound = {**build(b"x", FRIEND), "digest": "0" * 64}, build(b"x")
    assert joined_descriptions([broken, sound], {FRIEND.public}) == (sound,)
    assert joined_descriptions([broken], ()) == (broken,)
    assert len(joined_descriptions([broken, build(b"x", taken=1)], ())) == 1
    assert signers([broken, sound]) == set()


def test_without_cryptography_signatures_travel_as_they_are(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [build(b"x", FRIEND), build(b"x", STRANGER)]
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    (whole,) = joined_descriptions(said, ())
    assert whole["signatures"].keys() == {FRIEND.public, STRANGER.public}


def test_a_signature_that_counts_is_kept_among_more_than_there_is_room_for(build: Build) -> None:
    every = [signer for number in range(MAX_SIGNATURES + 1) for signer in builders(number)]
    said = [build(b"x", signer) for signer in every]
    last = max(signer.public for signer in every)
    for keys, kept in (({last}, True), (set[str](), False)):
        (whole,) = joined_descriptions(said, keys)
        assert len(whole["signatures"]) == MAX_SIGNATURES
        assert (last in whole["signatures"]) is kept
