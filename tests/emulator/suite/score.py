"""Scores of mutants: how many changed kernels of each family are noticed, which are not and why, and the committed table.

A score is one kind of change in one family. Its mutants are run in their order, and the table is written after each, so that a
stopped run goes on behind the last of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.emulator.suite.explained import EXPLAINED
from tests.emulator.suite.explained.reasons import NOT_MODELLED, UNUSED, Explanation, Places
from tests.emulator.suite.row import replace_file
from tests.support.repository import REPOSITORY

TABLE = REPOSITORY / "benchmarks" / "results" / "emulator_mutants.json"
"""The committed table; ``python -m tests.emulator.suite.mutations`` renews it."""
HOST = "host code"
"""The family of `host_faults`: each of them is a score of one mutant."""
ENOUGH = 0.85
"""Least share of a family's mutants that are not redundant which has to be noticed; of `HOST` all."""


@dataclass
class Score:
    """The mutants of one kind in one family.

    Attributes:
        family: One of `mutations.FAMILIES`.
        change: What is taken out or bent: an opcode of `mutants.ALL`, or a name of `host_faults`.
        source: Digest of the kernel's source, of its PTX, and of the instructions that are changed. A score with another one
            is dropped.
        total: How many mutants there are.
        noticed: How many are noticed, by the first schedule that does.
        missed: Those that are right in all schedules: the instruction by its place, which is a number from 0 in the order of
            the mutants.
        unknown: Those that the emulator cannot run: what it says, by the place.
        unused: Which of the missed ones load or store what no output depends on (`mutations.Family.is_unused`), by the place.
        kernel: Digest of the kernel's source alone (`Entry.source`), that a test compares with today's.
        emulator: Digest of the emulator that has last run those that are missed (`row.emulator_of_today`); an earlier one may have
            noticed the others.
    """

    family: str
    change: str
    source: str
    total: int
    noticed: dict[str, int] = field(default_factory=dict[str, int])
    missed: dict[int, str] = field(default_factory=dict[int, str])
    unknown: dict[int, str] = field(default_factory=dict[int, str])
    kernel: str = ""
    unused: list[int] = field(default_factory=list[int])
    emulator: str = ""

    @property
    def seen(self) -> int:
        """How many are noticed."""
        return sum(self.noticed.values())

    @property
    def run(self) -> int:
        """How many have been run: the place of the next."""
        return self.seen + len(self.missed) + len(self.unknown)

    def add(
        self, instruction: str, schedule: str = "", unknown: str = "", *, unused: bool = False
    ) -> None:
        """Add the next mutant: the schedule that notices it, or what the emulator says, or neither, and whether it is ``unused``."""
        place = self.run
        self._put(place, instruction, schedule, unknown)
        if unused and place in self.missed:
            self.unused.append(place)

    def again(self, place: int, instruction: str, schedule: str, unknown: str) -> None:
        """Take what another emulator says of a mutant that was missed or could not be run; as of `add`."""
        if not schedule and not unknown and place in self.missed:
            return
        self.missed.pop(place, None)
        self.unknown.pop(place, None)
        self.unused = [each for each in self.unused if each != place]
        self._put(place, instruction, schedule, unknown)

    def _put(self, place: int, instruction: str, schedule: str, unknown: str) -> None:
        if schedule:
            self.noticed[schedule] = self.noticed.get(schedule, 0) + 1
        elif unknown:
            self.unknown[place] = f"{instruction}: {unknown}"
        else:
            self.missed[place] = instruction


@dataclass(frozen=True)
class Share:
    """What was noticed of a family.

    Attributes:
        mutants: How many there are.
        run: How many of them have been run.
        noticed: How many are noticed.
        redundant: Missed, and right on every GPU.
        unmodelled: Missed or not run, since the emulator does not know what they break.
        unexplained: Missed or not run, and nobody has said why.
        unused: Of the redundant ones those that load or store what no output depends on (`UNUSED`): in another case one may.
    """

    mutants: int
    run: int
    noticed: int
    redundant: int
    unmodelled: int
    unexplained: int
    unused: int = 0

    @property
    def whole(self) -> bool:
        """Whether all have been run."""
        return self.run == self.mutants

    @property
    def share(self) -> float:
        """Noticed ones, of those run that are not redundant; 1 if there are none."""
        counted = self.run - self.redundant
        return self.noticed / counted if counted else 1.0

    @property
    def share_with_unused(self) -> float:
        """Noticed ones, of those run that are redundant in no case."""
        counted = self.run - self.redundant + self.unused
        return self.noticed / counted if counted else 1.0

    def __str__(self) -> str:
        left = "" if self.whole else f", {self.mutants - self.run} of {self.mutants} still to run"
        return (
            f"{self.noticed} of {self.run} noticed, {self.redundant} redundant ({self.share:.1%} of the rest), "
            f"{self.unmodelled} not modelled, {self.unexplained} unexplained{left}"
        )


def explanation(score: Score, place: int, explained: Places = EXPLAINED) -> Explanation | None:
    """Return why a mutant is missed or not run, if that is written down or a run has shown it."""
    mine = explained.get((score.family, score.change), {})
    general = None if place in score.unknown else NOT_MODELLED.get(score.change)
    # What no output of this case depends on may be needed in another.
    return mine.get(place) or (UNUSED if place in score.unused else general)


def share_of(scores: Iterable[Score], explained: Places = EXPLAINED) -> Share:
    """Return what was noticed of some scores together."""
    listed = list(scores)
    reasons = [
        explanation(score, place, explained)
        for score in listed
        for place in (*score.missed, *score.unknown)
    ]
    known = [reason for reason in reasons if reason is not None]
    return Share(
        sum(score.total for score in listed),
        sum(score.run for score in listed),
        sum(score.seen for score in listed),
        sum(reason.redundant for reason in known),
        sum(not reason.redundant for reason in known),
        len(reasons) - len(known),
        sum(reason is UNUSED for reason in known),
    )


def shares(scores: Iterable[Score], explained: Places = EXPLAINED) -> dict[str, Share]:
    """Return the share of each family."""
    families: dict[str, list[Score]] = {}
    for score in scores:
        families.setdefault(score.family, []).append(score)
    return {family: share_of(mine, explained) for family, mine in sorted(families.items())}


def complaints(scores: Iterable[Score], explained: Places = EXPLAINED) -> list[str]:
    """Return what is not as it has to be, one line each; of families whose mutants have not all been run, nothing."""
    listed = list(scores)
    return [
        line
        for family, share in shares(listed, explained).items()
        if share.whole
        for line in _complaints(
            family, share, [each for each in listed if each.family == family], explained
        )
    ]


def _complaints(
    family: str, share: Share, scores: Iterable[Score], explained: Places
) -> Iterator[str]:
    enough = 1.0 if family == HOST else ENOUGH
    if share.share < enough:
        yield f"{family}: {share.share:.1%} are noticed, less than {enough:.0%}"
    for score in scores:
        for place, instruction in score.missed.items():
            if explanation(score, place, explained) is None:
                yield f"{family}, {score.change} {place}: nobody has said why it is missed: {instruction}"
        for place, said in score.unknown.items():
            if explanation(score, place, explained) is None:
                yield f"{family}, {score.change} {place}: the emulator cannot run it: {said}"
        for place in explained.get((family, score.change), {}):
            if place not in score.missed and place not in score.unknown:
                yield f"{family}, {score.change} {place}: it is explained, and not missed"


def read(path: Path = TABLE) -> dict[tuple[str, str], Score]:
    """Return the scores of a table by family and change; none if there is no table."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    scores = [
        Score(
            *(row["family"], row["change"], row["source"], row["total"], row["noticed"]),
            missed={each["place"]: each["instruction"] for each in row["missed"]},
            unknown={each["place"]: each["reason"] for each in row["unknown"]},
            kernel=row["kernel"],
            unused=row["unused"],
            emulator=row.get("emulator", ""),
        )
        for row in data["rows"]
    ]
    return {(score.family, score.change): score for score in scores}


def write(
    scores: dict[tuple[str, str], Score],
    facts: dict[str, str],
    path: Path = TABLE,
    explained: Places = EXPLAINED,
) -> None:
    """Write a table: facts, the share of each family, then a row for each score, with the reason for each miss."""
    plain = {
        family: {
            **asdict(share),
            "share": round(share.share, 3),
            "share with unused": round(share.share_with_unused, 3),
        }
        for family, share in shares(scores.values(), explained).items()
    }
    families = ",\n".join(
        f"  {json.dumps(family)}: {json.dumps(each)}" for family, each in plain.items()
    )
    rows = ",\n".join(f"  {json.dumps(_plain(scores[key], explained))}" for key in sorted(scores))
    text = f'{{\n "facts": {json.dumps(facts)},\n "families": {{\n{families}\n }},\n "rows": [\n{rows}\n ]\n}}\n'
    replace_file(path, text)


def _plain(score: Score, explained: Places) -> dict[str, Any]:
    def reasoned(listed: dict[int, str], name: str) -> Iterator[dict[str, Any]]:
        for place, said in listed.items():
            reason = explanation(score, place, explained)
            redundant, why = (None, "") if reason is None else (reason.redundant, reason.why)
            yield {"place": place, name: said, "redundant": redundant, "why": why}

    missed, unknown = reasoned(score.missed, "instruction"), reasoned(score.unknown, "reason")
    return {**asdict(score), "missed": list(missed), "unknown": list(unknown)}
