"""Ranks that decide apart are told why."""

from __future__ import annotations

from typing import Any

import pytest

from inductor_plugin.config import Config
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.terms import Terms, differing, introduce, terms_of
from tests.support.ranks.simulated import MemoryStore, Rank, drive

FIELDS = {"device": {"type": "cpu", "name": "CPU", "threads": 2}, "software": {"torch": "2.14"}}
TEMPLATES = [("a", "module.A", "")]


def terms(
    environment: str = "e", templates: Any = TEMPLATES, host: bool = True, **options: Any
) -> Terms:
    config = Config.load(options, environ={})
    fields = {**FIELDS, "numerics": {"precision": environment}}
    return terms_of(environment, fields, config, templates, host_counts=host)


def introduced(*sides: Terms) -> list[str]:
    """Return what each rank sees that the ranks before it have said otherwise."""
    store = MemoryStore()
    said = [introduce(Job(rank, len(sides), store), each) for rank, each in enumerate(sides)]
    return [apart.difference if apart is not None else "" for apart in said]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            terms(never_slower_margin=1.1),
            "option never_slower_margin is '1.1' on rank 1, '1.02' on rank 0",
        ),
        (terms(verify_numerics="off"), "option verify_numerics is 'False'"),
        (terms(gemm_backends="ATEN,CPP"), "option gemm_backends is 'ATEN,CPP'"),
        (terms("high"), "environment.numerics.precision is 'high' on rank 1, 'e' on rank 0"),
        (terms(templates=[]), "template a is 'missing' on rank 1, 'module.A ' on rank 0"),
    ],
)
def test_what_keeps_ranks_from_deciding_together_is_named(other: Terms, text: str) -> None:
    first, second = introduced(terms(), other)
    assert first == ""
    assert text in second


@pytest.mark.parametrize("same", [terms(), terms(cache_dir="/x", policy="cached")])
def test_ranks_that_decide_together_are_told_nothing(same: Terms) -> None:
    assert introduced(terms(), same) == ["", ""]


def test_another_device_and_a_captured_graph_are_no_fault() -> None:
    config = Config.load({"never_slower_margin": 1.1}, environ={})
    fields = {"device": {"type": "cpu", "name": "another"}}
    gpu = terms_of("f", fields, config, TEMPLATES, host_counts=True)
    assert introduced(terms(), gpu) == ["", ""]
    assert introduced(terms(), terms(host=False)) == ["", ""]


def test_ranks_that_all_use_two_sets_of_options_are_told_nothing() -> None:
    store, plain, limited = MemoryStore(), terms(), terms(max_candidates=2)
    jobs = [Job(rank, 2, store) for rank in range(2)]
    said = [introduce(job, each) for job in jobs for each in (plain, limited, plain)]
    assert said == [None] * 6
    assert len(store.values) == 2


def test_a_rank_whose_group_another_has_come_to_later_decides_with_it() -> None:
    store, first, second = MemoryStore(), terms(), terms(max_candidates=2)
    both, alone = (Job(rank, 3, store) for rank in range(2))
    assert [introduce(both, each) for each in (first, second)] == [None, None]
    assert introduce(alone, second) is None
    apart = introduce(Job(2, 3, store), terms(max_candidates=3))
    assert apart is not None
    assert apart.group == first.group
    assert "option max_candidates is '3' on rank 2" in apart.difference


def test_damaged_terms_are_no_terms() -> None:
    store = MemoryStore()
    introduce(Job(0, 2, store), terms())
    store.values.update(dict.fromkeys(store.values, "damaged"))
    assert introduce(Job(1, 2, store), terms(max_candidates=2)) is None


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if "decide apart" in each.message]


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_rank_with_other_options_is_warned_once(
    caplog: pytest.LogCaptureFixture, is_ended: bool
) -> None:
    store, sides = MemoryStore(), (terms(), terms(never_slower_margin=1.1))
    ranks = [Rank(r, 2, store, each.group, terms=each) for r, each in enumerate(sides)]
    for rank in ranks:
        rank.submit("problem")
        rank.submit("another")
    now = drive(ranks)
    assert warned(caplog) == []
    for rank in ranks:
        rank.submit("of the next graph")
        rank.step(now + 50.0)
        if is_ended:
            rank.share.close()
        else:
            rank.step(now + 61.0)
    (warning,) = warned(caplog)
    assert "option never_slower_margin is '1.1' on rank 1, '1.02' on rank 0" in warning


def test_ranks_that_come_to_two_groups_in_two_orders_are_not_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, sides = MemoryStore(), (terms(), terms(never_slower_margin=1.1))
    jobs = [Job(number, 2, store) for number in range(2)]
    parts = [
        [Rank(job.rank, 2, store, each.group, terms=each, job=job) for each in order]
        for job, order in zip(jobs, (sides, sides[::-1]), strict=True)
    ]
    for turn, now in ((0, 0.0), (1, 30.0)):
        for own in parts:
            own[turn].submit("problem")
            own[turn].step(now)
            own[0].step(now + 20.0)
    for own in parts:
        for part in own:
            part.step(100.0)
            part.share.close()
    assert warned(caplog) == []


def test_a_policy_is_named_last() -> None:
    own, other = terms(policy="cached", ranks="off").said, terms().said
    text = "policy is 'cached, ranks=off' on rank 3, 'tune' on rank 0"
    assert differing(own, other, 3, 0) == text
    more = terms(policy="cached", max_candidates=2).said
    assert differing(more, other, 1, 0).startswith("option max_candidates")
    assert differing({}, other, 1, 0) == ""


def test_who_has_said_nothing_does_not_differ() -> None:
    assert differing(terms().said, {}, 1, 0) == ""
