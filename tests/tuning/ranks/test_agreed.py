"""The decision of a job: written, read, adopted."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

import pytest

from inductor_plugin.cache.record import rounded
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import (
    adopt,
    dump,
    library_for,
    load,
    of_verdict,
    refused,
)
from tests.support.ranks.simulated import LIBRARY, Rank, job_of, measured


def rank() -> Rank:
    return job_of(2)[0][0]


def test_a_decision_is_read_as_it_was_written() -> None:
    member = rank()
    ticket = member.ticket(
        "problem", known={LIBRARY: measured(LIBRARY, 2.0), "fast": measured("fast", 1.0)}
    )
    record = rounded(member.selection.record_of(ticket))
    agreed = of_verdict(Verdict("fast", LIBRARY, "it is", 2.0, provisional=True), record, 3)
    text = dump(agreed)
    assert text.isascii()
    assert load(text) == agreed
    assert load(dump(library_for("lost", 1))) == library_for("lost", 1)


def test_a_library_kernel_that_stays_has_no_speedup_on_other_ranks() -> None:
    stays = of_verdict(Verdict(LIBRARY, LIBRARY, "it stays", 1.0, 1.01), None, 1)
    assert load(dump(stays)) == stays
    ticket = rank().ticket("problem")
    adopt(ticket, stays)
    assert ticket.verdict == Verdict(LIBRARY, LIBRARY, "it stays", 1.0, 1.01)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"winner": 3}', b"\xff", b'{"winner": "a", "rank": "b"}']
)
def test_what_is_no_decision_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        load(base64.b85encode(zlib.compress(content)).decode())


DEEP = base64.b85encode(zlib.compress(b"[" * 100_000)).decode()


@pytest.mark.parametrize("text", ["", "not compressed", "\x00", DEEP])
def test_a_damaged_decision_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        load(text)


def test_the_library_kernel_of_a_job_is_the_one_that_a_rank_has() -> None:
    ticket = rank().ticket("problem")
    adopt(ticket, library_for("rank 1 is gone", 0))
    assert ticket.verdict == Verdict(LIBRARY, LIBRARY, "rank 1 is gone", provisional=True)
    assert ticket.measured == {}


def test_a_rank_does_not_run_what_has_failed_on_it() -> None:
    ticket = rank().ticket("problem")
    ticket.measured["fast"] = measured("fast", 1.0, "crashed")
    assert refused(ticket) == ["fast"]
    adopt(ticket, of_verdict(Verdict("fast", LIBRARY, "it is", 2.0), None, 1))
    assert ticket.verdict is not None
    assert ticket.verdict.winner == LIBRARY
    assert "has failed here: crashed (it was seen to fail)" in ticket.verdict.reason


def test_only_times_of_what_is_offered_are_taken() -> None:
    member, ticket = rank(), rank().ticket("problem", names=["fast"])
    other = member.ticket("problem", known={n: measured(n, 1.0) for n in (LIBRARY, "fast", "slow")})
    agreed = of_verdict(Verdict("fast", LIBRARY, "it is"), member.selection.record_of(other), 1)
    adopt(ticket, agreed)
    assert set(ticket.measured) == {LIBRARY, "fast"}
    adopt(ticket, replace(agreed, record=None))
    assert ticket.measured == {}
