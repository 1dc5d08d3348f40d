"""Claims to problems: shares, orders, and the text in the store."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.ranks.claim import FREE, Claim, capacity, order, parse


@pytest.mark.parametrize(
    ("undecided", "world", "most"),
    [(24, 8, 3), (25, 8, 4), (1, 8, 2), (0, 8, 2), (200, 1000, 2), (7, 2, 4)],
)
def test_a_rank_holds_its_share_rounded_up_and_two_at_least(
    undecided: int, world: int, most: int
) -> None:
    assert capacity(undecided, world) == most


def test_each_rank_tries_in_an_order_of_its_own() -> None:
    problems = [f"mm/{number}" for number in range(24)]
    orders = [tuple(order(problems, rank)) for rank in range(8)]
    assert len(set(orders)) == 8
    assert all(sorted(each) == sorted(problems) for each in orders)
    assert orders[3] == tuple(order(reversed(problems), 3))
    assert len({each[0] for each in orders}) >= 5  # most begin where no other does


def test_a_claim_is_read_as_it_was_written() -> None:
    assert parse(Claim(12, "ab", 3).text) == Claim(12, "ab", 3)


@pytest.mark.parametrize("text", ["", FREE, "x y", "-1 ab 0", "3", "3 ab", "3 ab x", "3 ab 0 0"])
def test_what_is_no_claim_claims_nothing(text: str) -> None:
    assert parse(text) is None
