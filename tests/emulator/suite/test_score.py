"""The committed table of mutants: which families are whole in it, and as they have to be."""

from __future__ import annotations

from tests.emulator.suite import mutations, score
from tests.emulator.suite.explained.reasons import UNUSED, Explanation
from tests.emulator.suite.score import Score


def faults_of_table() -> set[str]:
    """Return which families the committed table has not, or not whole, or not as they have to be."""
    listed = list(score.read().values())
    lines = (*mutations.outdated(listed), *score.complaints(listed))
    wrong = {
        family
        for family in mutations.FAMILIES
        if any(line.startswith((f"{family}:", f"{family}, ")) for line in lines)
    }
    return wrong | {family for family, share in score.shares(listed).items() if not share.whole}


def test_the_committed_table_is_as_it_has_to_be() -> None:
    assert faults_of_table() == set()


def test_what_is_unused_in_a_case_may_be_needed_in_another() -> None:
    loads = Score("sm80", "ld.global", "digest", 2, {}, {0: "ld;", 1: "ld;"}, unused=[0, 1])
    needed = Explanation("it is the last row")
    explained = {("sm80", "ld.global"): {1: needed}}
    assert [score.explanation(loads, place, explained) for place in (0, 1)] == [UNUSED, needed]
