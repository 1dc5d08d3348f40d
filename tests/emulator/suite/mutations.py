"""Which mutants of a representative kernel of each family are noticed.

    python -m tests.emulator.suite.mutations [--family sm80 ...] [--limit-s 600]

Every synchronising instruction that runs is taken out, and every address moved by 16 bytes, one at a time; a mutant is noticed if a
schedule is wrong, refused or stuck. What is missed is listed with its line, and has to be explained in `EXPLAINED`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.emulator.kernels import build, mutants
from tests.emulator.kernels.mutants import Mutant, noticed
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.entry import Entry, entries
from tests.support.repository import REPOSITORY

TABLE = REPOSITORY / "benchmarks" / "results" / "emulator_mutants.json"
REPRESENTATIVES = {
    "sm80": "sm80 nn",
    "sm90 pingpong": "sm90 one B for all",
    "sm90 cooperative": "sm90 bias of a column",
    "sm90 clusters": "sm90 clusters along n",
    "sm90 full bias": "sm90 full bias",
    "sm90 stream-K": "sm90 stream-K, split",
    "sm90 fp8": "sm90 fp8 scales by row, bias",
    "sm90 grouped": "sm90 grouped, odd",
    "tree": "tree gate_two",
    "sm100": "sm100 full bias",
    "fmha forward": "fmha window, more keys",
    "fmha backward": "fmha backward, causal, more keys",
}
"""A case of each family, with several tiles a block or stages used twice where that is cheap."""
SCHEDULES = (WATCHED, LATE, Schedule(ahead="first"), Schedule(late=True, ahead="last"))
EXPLAINED: dict[tuple[str, str], str] = {}
"""Why mutants of a family and an opcode are missed."""


@dataclass
class Score:
    """The mutants of one opcode.

    Attributes:
        family: A key of `REPRESENTATIVES`.
        opcode: One of `mutants.ALL`.
        total: How many there are.
        by: Those that are noticed, by the first schedule that does.
        missed: Lines of the others.
        why: Why they are missed.
    """

    family: str
    opcode: str
    total: int = 0
    by: dict[str, int] = field(default_factory=dict[str, int])
    missed: list[str] = field(default_factory=list[str])
    why: str = ""

    @property
    def seen(self) -> int:
        """How many are noticed."""
        return sum(self.by.values())


def read(path: Path = TABLE) -> dict[tuple[str, str], Score]:
    """Return the scores of a table by family and opcode; none if there is no table."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {(row["family"], row["opcode"]): Score(**row) for row in data["rows"]}


def write(scores: dict[tuple[str, str], Score], path: Path = TABLE) -> None:
    """Write a table, with the share of each family first."""
    shares: dict[str, str] = {}
    for family in sorted({family for family, _ in scores}):
        mine = [score for score in scores.values() if score.family == family]
        shares[family] = f"{sum(each.seen for each in mine)} of {sum(each.total for each in mine)}"
    lines = ",\n".join(f"  {json.dumps(asdict(scores[key]))}" for key in sorted(scores))
    text = f'{{\n "noticed": {json.dumps(shares, indent=2)},\n "rows": [\n{lines}\n ]\n}}\n'
    path.write_text(text, encoding="utf-8")


def first_that_notices(runtime: Runtime, entry: Entry, mutant: Mutant) -> str:
    """Return the first schedule in which a mutant is wrong, empty if none is."""
    for schedule in SCHEDULES:

        def right(schedule: Schedule = schedule) -> bool:
            verdict = entry.run(runtime, schedule)
            blackwell = entry.gpu == "B200"  # that epilogue ends with stores that nobody waits for
            unfinished = (
                [] if blackwell else [x for each in verdict.launches for x in each.unfinished]
            )
            return verdict.error <= 1 and not verdict.changed and not unfinished

        with runtime.edited(mutant.apply):
            if noticed(right):
                return str(schedule)
    return ""


def score(runtime: Runtime, family: str, opcode: str) -> Score:
    """Run all mutants of an opcode."""
    entry, texts = entries()[REPRESENTATIVES[family]], list[str]()

    def kept(text: str) -> str:
        texts.append(text)
        return text

    with runtime.edited(kept):
        verdict = entry.run(runtime, EAGER)
    assert verdict.error <= 1, f"{entry.name} is wrong itself"
    result = Score(family, opcode, why=EXPLAINED.get((family, opcode), ""))
    ran = frozenset(line for launch in verdict.launches for line in launch.lines)
    for mutant in mutants.mutants(texts[-1], ran, opcode):
        result.total += 1
        schedule = first_that_notices(runtime, entry, mutant)
        if schedule:
            result.by[schedule] = result.by.get(schedule, 0) + 1
        else:
            result.missed.append(f"{mutant.line}: {mutant.old.strip()}")
    return result


def main() -> None:
    """Run what is missing in the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.suite.mutations")
    parser.add_argument("--family", action="append", choices=list(REPRESENTATIVES))
    parser.add_argument("--limit-s", type=float, default=3600.0, help="begin no opcode after it")
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.limit_s
    runtime, scores = Runtime(build.CACHE), read()
    for family in arguments.family or REPRESENTATIVES:
        config = entries()[REPRESENTATIVES[family]].config
        if config is None or not build.is_built(config):
            print(f"{family}: its kernel is not built", flush=True)
            continue
        for opcode in mutants.ALL:
            if (family, opcode) in scores or time.monotonic() > ends:
                continue
            scores[family, opcode] = score(runtime, family, opcode)
            done = scores[family, opcode]
            print(f"{family} {opcode}: {done.seen} of {done.total}", *done.missed, sep="\n  ")
            write(scores)


if __name__ == "__main__":
    main()
