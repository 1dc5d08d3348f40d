"""How often the fastest kernel is chosen, on a quiet machine and beside other work, and what a wrong choice costs.

The plugin and Inductor's own max-autotune tune fifty frozen linear layers in processes with empty caches, beside each load.
What is the fastest is measured for itself, on the quiet machine: all candidates in turns, some dozens each, in two processes
as the plugin samples them, with operands in memory and in the caches, and in two with operands in the caches alone. The latter
have no part in the claims of agreement: they show what a choice costs where all of a network is in the caches. A last process
samples no kernel for itself: it measures networks of equal layers, of each candidate (`benchmarks.choices.network`), so that a mistake of
the plugin's samples is seen, too.
Where the plugin says that a choice is provisional, a later process on the quiet machine shows whether it was kept.

    python -m benchmarks.choices.regret --out benchmarks/results/regret_cpu.json

Each process is a row, written as it comes: a run that was ended goes on there. The status is 1 if a process failed, or if
there are no figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.choices.figures import Tuning, claims, costs, regret, summary
from benchmarks.harness.arms import machine
from benchmarks.harness.child import child_environment
from benchmarks.harness.load import LOADS, load
from benchmarks.harness.repository import REPOSITORY, RESULTS
from benchmarks.harness.resume import Budget, Rows
from benchmarks.harness.sources import PLUGIN
from inductor_plugin.tuning.validity import AGAIN_S

_SOURCES = (*PLUGIN, "benchmarks/choices", "benchmarks/harness/load.py")
_FIRST = ("quiet", "2 busy")
"""The loads of the claims, tuned beside first."""
_REFERENCES = 2
REFERENCE, WARM, NETWORK = JUDGES = ("reference", "warm reference", "network")
"""Arms that measure all candidates: as the plugin samples them, with operands in the caches alone, and in networks."""
_LONGEST_S = 3600.0
"""Longest time of a process."""
_PAUSE_S = AGAIN_S + 2.0
"""Seconds after which a later process may measure a provisional choice again."""
_SAID = 2000
FAILED = "failed"


@dataclass(frozen=True)
class Step:
    """One process, or two on the same caches: a row of the result.

    Attributes:
        arm: One of `JUDGES`, ``ours`` or ``stock``.
        load: The load beside which it runs.
        number: The round.
    """

    arm: str
    load: str
    number: int

    @property
    def name(self) -> str:
        """The name of its row."""
        return f"{self.arm}, {self.load}, {self.number}"


class ArmError(Exception):
    """A process did not answer."""


def main(given: Sequence[str] | None = None) -> int:
    """Tune beside each load, print what was chosen, and write it to ``--out``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.choices.regret",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="tunings of each arm and load")
    parser.add_argument("--turns", type=int, default=40, help="turns of a reference process")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=_in_turn())
    parser.add_argument("--layers", type=int, default=0, help="only the first so many")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which no process starts")
    parser.add_argument("--fresh", action="store_true", help="forget what is finished")
    parser.add_argument("--out", type=Path, default=RESULTS / "regret_cpu.json")
    arguments = parser.parse_args(given)
    facts = machine(_SOURCES, dry=True) or {}
    if arguments.layers:  # rows of some layers are not those of all
        facts["sources"] = f"{facts['sources']}, {arguments.layers} layers"
    before = () if arguments.fresh else (arguments.out,)
    rows = Rows(arguments.out, facts, before, key="name")
    if rows.rejection:
        print(rows.rejection)
    steps = planned(arguments.rounds, arguments.loads)
    left = measured(steps, rows, Budget(60 * arguments.minutes), arguments)
    figures = rows.facts.get("summary", {})
    print(json.dumps({"summary": figures, "claims": rows.facts.get("claims", [])}, indent=2))
    if left:
        print(f"{len(left)} processes are left ({left[0].name} is next); run it again to go on.")
    if arguments.out.is_file():
        print(f"Written to {arguments.out}.")
    return status(rows.rows, figures)


def planned(rounds: int, loads: Sequence[str]) -> list[Step]:
    """Return the processes, the reference first, then round by round."""
    references = [
        Step(arm, "quiet", number) for number in range(_REFERENCES) for arm in (REFERENCE, WARM)
    ]
    references.append(Step(NETWORK, "quiet", 0))
    return references + [
        Step(arm, name, number)
        for number in range(rounds)
        for name in loads
        for arm in ("ours", "stock")
    ]


def measured(steps: Sequence[Step], rows: Rows, budget: Budget, arguments: Any) -> list[Step]:
    """Run the processes without a row until the budget ends; return those that are left.

    Args:
        steps: All processes.
        rows: Collects the rows, and the figures of all rows.
        budget: What the run may take.
        arguments: ``turns`` and ``layers``.
    """
    left = [step for step in steps if FAILED in (rows.get(step.name) or {FAILED: ""})]
    _describe(rows)
    while left and budget.rest_s() > 0:
        step, *left = left
        started = time.monotonic()
        try:
            answer: dict[str, Any] = tuned(step, arguments.turns, arguments.layers)
        except ArmError as error:
            answer = {FAILED: str(error)}
        answer["seconds"] = round(time.monotonic() - started, 1)
        row = {"name": step.name, "arm": step.arm, "load": step.load, **answer}
        rows.put(row)
        _describe(rows)
        rows.write()
        print(line(row, rows.rows), flush=True)
    return left


def tuned(step: Step, turns: int, layers: int) -> dict[str, Any]:
    """Return what one process with empty caches answers, and a later one where some choices are provisional.

    Raises:
        ArmError: A process did not answer.
    """
    with tempfile.TemporaryDirectory(prefix="regret-", ignore_cleanup_errors=True) as folder:
        answer = run(step.arm, step.load, Path(folder), turns, layers)
        if step.arm == "ours" and not all(e["firm"] for e in answer["problems"].values()):
            time.sleep(_PAUSE_S)
            later = run(step.arm, "quiet", Path(folder), turns, layers)
            answer |= {"later": later["problems"], "later_compile_s": later["compile_s"]}
    return answer


def run(arm: str, load_name: str, folder: Path, turns: int, layers: int = 0) -> dict[str, Any]:
    """Return what one process answers, beside a load.

    Args:
        arm: What it does.
        load_name: The load.
        folder: Its caches.
        turns: Turns of a reference.
        layers: Number of layers; 0 for all.

    Raises:
        ArmError: It did not answer.
    """
    environment = child_environment(
        TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", INDUCTOR_PLUGIN_CACHE_DIR=f"{folder}/plugin"
    )
    what = {WARM: ["arm", REFERENCE, "--warm"], NETWORK: ["network"]}.get(arm, ["arm", arm])
    command = [sys.executable, "-m", f"benchmarks.choices.{what[0]}", *what[1:]]
    command += ["--turns", str(turns)]
    command += ["--layers", str(layers)] if layers else []
    with load(load_name):
        try:
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ArmError(f"no answer within {_LONGEST_S:.0f} s") from error
    if done.returncode:
        raise ArmError(f"it ended with {done.returncode}: {done.stderr[-_SAID:]}")
    return json.loads(done.stdout.splitlines()[-1])


def tunings_in(rows: Sequence[Mapping[str, Any]]) -> list[Tuning]:
    """Return the tunings among the rows."""
    return [
        Tuning(row["arm"], row["load"], row["problems"], row.get("later", {}))
        for row in rows
        if row["arm"] not in JUDGES and FAILED not in row
    ]


def references_in(
    rows: Sequence[Mapping[str, Any]], arm: str = REFERENCE
) -> list[Mapping[str, Any]]:
    """Return what the reference processes of an arm say."""
    return [row["problems"] for row in rows if row["arm"] == arm and FAILED not in row]


def status(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the exit status: 1 if a process failed, or if nothing is known of the choices of an arm."""
    failed = any(FAILED in row for row in rows)
    empty = not figures or any(not figure["choices"] for figure in figures.values())
    return int(failed or empty)


def line(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one row as text."""
    begin = f"{row['name']:<22} {row['seconds']:6.1f} s"
    if FAILED in row:
        return f"{begin}  failed: {row[FAILED]}"
    if row["arm"] in JUDGES:
        return (
            f"{begin}  {len(costs([row['problems']]))} problems of {len(row['problems'])} are known"
        )
    (tuning,) = tunings_in([row])
    facts = regret([tuning], costs(references_in(rows)))
    firm = sum(entry["firm"] for entry in tuning.problems.values())
    again = sum(entry["measured"] for entry in tuning.later.values())
    known = (
        f"{facts.get('near')} near, mean {facts.get('mean_time')}, most {facts.get('most_time')}"
    )
    return f"{begin}  {known}, {firm} of {len(tuning.problems)} firm, {again} measured again"


def _describe(rows: Rows) -> None:
    """Set the figures of all rows above them."""
    by_judge = {arm: costs(references_in(rows.rows, arm)) for arm in JUDGES}
    figures = summary(tunings_in(rows.rows), *by_judge.values())
    rows.facts |= {"summary": figures, "claims": claims(figures), **by_judge}


def _in_turn() -> list[str]:
    return [*_FIRST, *(name for name in LOADS if name not in _FIRST)]


if __name__ == "__main__":
    raise SystemExit(main())
