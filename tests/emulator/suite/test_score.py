"""The committed table of mutants: which families are whole in it, and as they have to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.suite import mutations, score
from tests.emulator.suite.explained.reasons import UNUSED, Explanation
from tests.emulator.suite.score import HOST, Score

EXPLAINED = {("sm90 x", "bar.sync"): {2: Explanation("nothing was stored before", redundant=True)}}


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
    share = score.share_of([loads], explained)
    assert (share.redundant, share.unused, share.unmodelled) == (1, 1, 1)
    assert (share.share, share.share_with_unused) == (0.0, 0.0)
    noticed = Score("sm80", "ld.global", "digest", 4, {"late": 2}, {2: "ld;", 3: "ld;"}, unused=[2])
    share = score.share_of([noticed], {("sm80", "ld.global"): {3: needed}})
    assert (share.share, share.share_with_unused) == (2 / 3, 0.5)


def table_of(*scores: Score) -> dict[tuple[str, str], Score]:
    return {(each.family, each.change): each for each in scores}


def test_the_table_has_the_share_of_each_family_and_the_reason_of_each_miss(tmp_path: Path) -> None:
    path = tmp_path / "mutants.json"
    scores = table_of(
        Score("sm90 x", "bar.sync", "a", 10, {"late": 7}, {2: "bar.sync 0;", 5: "bar.sync 1;"}),
        Score("sm90 x", "membar", "a", 1, {}, {0: "membar.gl;"}),
        Score(HOST, "a row too few", "a", 1, {"eager": 1}),
    )
    score.write(scores, {"nvcc": "13"}, path, EXPLAINED)
    plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert plain["facts"] == {"nvcc": "13"}
    assert plain["families"]["sm90 x"] == {
        "mutants": 11,
        "run": 10,
        "noticed": 7,
        "redundant": 1,
        "unmodelled": 1,
        "unexplained": 1,
        "unused": 0,
        "share": round(7 / 9, 3),
        "share with unused": round(7 / 9, 3),
    }
    assert plain["families"][HOST]["share"] == 1.0
    missed = plain["rows"][1]["missed"]
    assert missed[0] == {
        "place": 2,
        "instruction": "bar.sync 0;",
        "redundant": True,
        "why": "nothing was stored before",
    }
    assert (missed[1]["redundant"], missed[1]["why"]) == (None, "")
    assert score.read(path) == scores


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        ([Score("sm90 x", "red", "a", 20, {"late": 2}, {2: "b;"}, {3: "c"})], ""),  # not all run
        ([Score("sm90 x", "bar.sync", "a", 18, {"late": 17}, {2: "b;"}, {})], ""),
        ([Score("sm90 x", "red", "a", 6, {"late": 5}, {2: "b;"}, {})], "nobody has said"),
        ([Score("sm90 x", "membar", "a", 6, {"late": 5}, {2: "b;"}, {})], "83.3% are noticed"),
        ([Score("sm90 x", "red", "a", 9, {"late": 8}, {}, {2: "b;: c"})], "cannot run it: b;: c"),
        ([Score("sm90 x", "membar", "a", 9, {"late": 8}, {}, {2: "b;: c"})], "cannot run it"),
        ([Score("sm90 x", "bar.sync", "a", 9, {"late": 8}, {}, {2: "b;: c"})], ""),
        ([Score("sm90 x", "bar.sync", "a", 2, {"late": 2}, {}, {})], "explained, and not missed"),
        ([Score(HOST, str(n), "a", 1, {"eager": 1}) for n in range(20)], ""),
        (
            [
                Score(HOST, "wrong", "a", 1, {}, {0: "a case"}),
                *(Score(HOST, str(n), "a", 1, {"eager": 1}) for n in range(20)),
            ],
            "95.2% are noticed, less than 100%",
        ),
    ],
)
def test_what_is_not_as_it_has_to_be_is_said_of_whole_families(
    scores: list[Score], complaint: str
) -> None:
    lines = score.complaints(scores, EXPLAINED)
    assert any(complaint in line for line in lines) if complaint else not lines
