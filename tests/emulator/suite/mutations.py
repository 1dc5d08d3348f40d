"""Which mutants of a representative kernel of each family are noticed, and which faults of host code.

    python -m tests.emulator.suite.mutations [--family sm90 ...] [--limit-s 1200] [--built] [--recheck]

Of the instructions that run, each that synchronises is taken out, and each address, descriptor and count of bytes bent, one at a
time (`kernels.mutants`); a mutant is noticed if a schedule is wrong, refused or stuck. The table is written after each of them, and a stopped run goes on where it was. What is missed
has to be explained in `explained`. `--recheck` runs again what an earlier emulator has missed. The command ends with what is not as it has to be, and then returns 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.kernels import build, mutants, triton
from tests.emulator.kernels.mutants import Mutant
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import host_faults, representatives
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.row import Verdict, emulator_of_today, ptx_of, versions
from tests.emulator.suite.score import HOST, TABLE, Score, complaints, read, shares, write

FAMILIES = (HOST, *representatives.FAMILIES)
SCHEDULES = (WATCHED, LATE, Schedule(ahead="first"), Schedule(late=True, ahead="last"))


@dataclass(frozen=True)
class Change:
    """A mutant of a score, and how it is run.

    Attributes:
        instruction: What is changed, for people.
        run: Returns the first schedule that notices it, and else what the emulator says that cannot run it.
        is_unused: Returns whether no output depends on what it loads or stores; asked where none notices it.
        ptx: Digest of the kernel that is changed (`row.ptx_of`): sizes of a case are numbers in a Triton kernel.
    """

    instruction: str
    run: Callable[[], tuple[str, str]]
    is_unused: Callable[[], bool] = lambda: False
    ptx: str = ""


@dataclass(frozen=True)
class Family:
    """A kernel that is right, and what its mutants are compared with.

    Attributes:
        runtime: Runs it.
        entry: Its case.
        ptx: Digest of what its launches run.
        stores: Schedules in which it leaves stores that its entry allows (`Entry.leaves_stores`); in the others a mutant that
            does is wrong, and in all of them one that leaves anything else.
    """

    runtime: Runtime
    entry: Entry
    ptx: str
    stores: frozenset[Schedule]

    def edited(self, edit: Callable[[str], str]) -> AbstractContextManager[None]:
        """Change the PTX of its modules."""
        if self.entry.family == "triton":
            return triton.edited(edit)
        return self.runtime.edited(edit)

    def seen(self, text: str, mutant: Mutant) -> tuple[str, str]:
        """Run a mutant of the module with a text; see `Change`."""
        with self.edited(_edit(text, mutant)):
            return first_that_notices(self.wrong)

    def is_unused(self, text: str, mutant: Mutant) -> bool:
        """Return whether the outputs are the same with each of several values in place of what an instruction loads or stores."""
        poisoned = list(mutant.poisoned())
        return bool(poisoned) and all(self._is_right(text, each) for each in poisoned)

    def _is_right(self, text: str, mutant: Mutant) -> bool:
        with self.edited(_edit(text, mutant)):
            return _noticed(self.wrong, EAGER) == (False, "")

    def wrong(self, schedule: Schedule) -> bool:
        """Run it, edited; return whether its results are wrong."""
        verdict = self.entry.run(self.runtime, schedule)
        left = self.entry.undone(verdict) or (schedule not in self.stores and _unfinished(verdict))
        return not verdict.error <= 1 or verdict.changed > 0 or bool(left)


def _edit(text: str, mutant: Mutant) -> Callable[[str], str]:
    """Return what makes a mutant of the module with a text, and leaves others as they are."""
    return lambda module: mutant.apply(module) if module == text else module


def first_that_notices(
    wrong: Callable[[Schedule], bool], schedules: Sequence[Schedule] = SCHEDULES
) -> tuple[str, str]:
    """Return the first schedule in which a kernel is wrong or refused, and else why one could not be run; see `Change`."""
    unknown = ""
    for schedule in schedules:
        noticed, said = _noticed(wrong, schedule)
        if noticed:
            return str(schedule), ""
        unknown = unknown or said
    return "", unknown


def _noticed(wrong: Callable[[Schedule], bool], schedule: Schedule) -> tuple[bool, str]:
    """Return whether a kernel is wrong or refused, or why the emulator cannot say it."""
    try:
        return wrong(schedule), ""
    except UnmodelledError as error:
        return False, str(error)
    except (FaultError, KernelError):
        return True, ""
    except Exception as error:  # noqa: BLE001 - a mistake of the emulator is in the table; other mutants are still to run
        return False, f"{type(error).__name__}: {error}"


def _unfinished(verdict: Verdict) -> bool:
    return any(launch.unfinished for launch in verdict.launches)


def family_of(runtime: Runtime, entry: Entry) -> tuple[Family, dict[str, frozenset[int]]]:
    """Run a kernel as it is, in all schedules; return it and the lines that ran of each module's text.

    Raises:
        ValueError: It is wrong itself.
    """
    lines: dict[str, frozenset[int]] = {}
    stores: set[Schedule] = set()
    ptx = ""
    for schedule in SCHEDULES:
        verdict = entry.run(runtime, schedule)
        if not verdict.error <= 1 or verdict.changed:
            raise ValueError(f"{entry.name} is wrong itself, {schedule}: {verdict.error}")
        if left := entry.undone(verdict):
            raise ValueError(f"{entry.name} is wrong itself, {schedule}: {left[0]}")
        if _unfinished(verdict):
            stores.add(schedule)
        ptx = ptx or ptx_of(verdict.launches)
        for launch in verdict.launches:
            lines[launch.text] = lines.get(launch.text, frozenset()) | launch.lines
    return Family(runtime, entry, ptx, frozenset(stores)), lines


def changes_of(runtime: Runtime, entry: Entry) -> dict[str, list[Change]]:
    """Return the mutants of a kernel by opcode."""
    family, lines = family_of(runtime, entry)

    def change(text: str, mutant: Mutant) -> Change:
        return Change(
            mutant.described,
            lambda: family.seen(text, mutant),
            lambda: family.is_unused(text, mutant),
            family.ptx,
        )

    return {
        opcode: [
            change(text, mutant)
            for text, ran in lines.items()
            for mutant in mutants.mutants(text, ran, opcode)
        ]
        for opcode in mutants.ALL
    }


def host_changes(runtime: Runtime) -> dict[str, list[Change]]:
    """Return the faults of host code by name, each with itself alone."""

    def change(name: str) -> Change:
        def wrong(_schedule: Schedule) -> bool:
            return host_faults.wrong(runtime, name)

        return Change(host_faults.case_of(name), lambda: first_that_notices(wrong, (EAGER,)))

    return {name: [change(name)] for name in host_faults.NAMES}


def begun(
    family: str,
    sources: Mapping[str, str],
    changes: dict[str, list[Change]],
    scores: dict[tuple[str, str], Score],
) -> dict[tuple[str, str], Score]:
    """Return the scores of a family: those of the table that are of these mutants, and empty ones.

    Args:
        family: Its name.
        sources: Digest of the kernel's source, by opcode.
        changes: Its mutants by opcode; of an opcode without any there is no score.
        scores: The table.
    """
    result: dict[tuple[str, str], Score] = {}
    for opcode, listed in changes.items():
        facts = (f"{change.ptx} {change.instruction}" for change in listed)
        texts = "\n".join((sources[opcode], *facts))
        digest = hashlib.sha256(texts.encode()).hexdigest()[:16]
        old = scores.get((family, opcode))
        if listed:
            known = old is not None and (old.source, old.total) == (digest, len(listed))
            new = Score(family, opcode, digest, len(listed), kernel=sources[opcode])
            new.emulator = emulator_of_today()
            result[family, opcode] = old if old and known else new
    return result


def sources_of(family: str, changes: Iterable[str]) -> dict[str, str]:
    """Return the digest of the source of the kernel that each kind of change is made to: of faults of host code that of their case."""
    if family == HOST:
        cases = entries()
        return {name: cases[host_faults.case_of(name)].source for name in changes}
    source = representatives.representatives()[family].source
    return dict.fromkeys(changes, source)


def outdated(
    scores: Iterable[Score], sources: Callable[[str, Iterable[str]], Mapping[str, str]] = sources_of
) -> list[str]:
    """Return what a table has of other kernels than today's, and what it lacks, one line each.

    Args:
        scores: The table.
        sources: Returns the digests of a family's kernels by change, as `sources_of` does.
    """
    families: dict[str, dict[str, Score]] = {}
    for score in scores:
        families.setdefault(score.family, {})[score.change] = score
    lines = [f"{family}: not begun" for family in FAMILIES if family not in families]
    for family, mine in families.items():
        if family not in FAMILIES:
            lines.append(f"{family}: no family")
            continue
        wanted = set(host_faults.NAMES) if family == HOST else set(mine)
        lines += [f"{family}, {name}: not in the table" for name in sorted(wanted - set(mine))]
        lines += [f"{family}, {name}: no such change" for name in sorted(set(mine) - wanted)]
        today = sources(family, sorted(wanted & set(mine)))
        lines += [
            f"{family}, {name}: of another source"
            for name, source in today.items()
            if mine[name].kernel != source
        ]
    return lines


def chosen(names: Sequence[str]) -> list[str]:
    """Return the families of some names: a family's own, or the first word of several; all if there are none.

    Raises:
        ValueError: There is none of a name.
    """
    for name in names:
        if not any(name in (family, family.split()[0]) for family in FAMILIES):
            raise ValueError(f"no family {name!r}; there are {', '.join(FAMILIES)}")
    return [
        family for family in FAMILIES if not names or family in names or family.split()[0] in names
    ]


def run_family(
    family: str,
    sources: Mapping[str, str],
    changes: dict[str, list[Change]],
    ends: float,
    path: Path = TABLE,
    *,
    recheck: bool = False,
) -> Generator[str]:
    """Run what is missing of a family, and write the table after each mutant; yield a line about it.

    Args:
        family: Its name.
        sources: Digest of the kernel's source, by opcode.
        changes: Its mutants by opcode.
        ends: Time of `time.monotonic` after which none is begun.
        path: The table.
        recheck: Whether to run again what an earlier emulator has missed.
    """
    mine, facts = begun(family, sources, changes, read(path)), versions()
    write(_merged(family, mine, path), facts, path)
    for (_, opcode), score in mine.items():
        for change in changes[opcode][score.run :]:
            if time.monotonic() > ends:
                return
            schedule, unknown = change.run()
            unused = not schedule and not unknown and change.is_unused()
            score.add(change.instruction, schedule, unknown, unused=unused)
            write(_merged(family, mine, path), facts, path)
            place = f"{family}, {opcode}, {score.run} of {score.total}"
            said = schedule or unknown or ("unused" if unused else "missed")
            yield f"{place}: {said}: {change.instruction}"
    for (_, opcode), score in mine.items() if recheck else ():
        if score.emulator == emulator_of_today():
            continue
        for place in (*score.missed, *score.unknown):
            if time.monotonic() > ends:
                return
            schedule, unknown = changes[opcode][place].run()
            score.again(place, changes[opcode][place].instruction, schedule, unknown)
            yield f"{family}, {opcode}, place {place}: {schedule or 'as before'}"
        score.emulator = emulator_of_today()
        write(_merged(family, mine, path), facts, path)


def _merged(
    family: str, mine: dict[tuple[str, str], Score], path: Path
) -> dict[tuple[str, str], Score]:
    """Return the table with a family's scores in place of its old ones; another process may have added some of others."""
    others = {key: score for key, score in read(path).items() if key[0] != family}
    return {**others, **mine}


def said_of(families: Sequence[str], scores: Iterable[Score]) -> tuple[list[str], list[str]]:
    """Return a line for the share of each family, and what is not as it has to be."""
    mine = [score for score in scores if score.family in families]
    share = shares(mine)
    lines = [f"{family}: {share.get(family, 'not begun')}" for family in families]
    return lines, complaints(mine)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing in the table; return 1 if something is not as it has to be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.emulator.suite.mutations", description=__doc__
    )
    parser.add_argument(
        "--family", action="append", default=[], help="sm90, 'sm90 grouped', host ..."
    )
    parser.add_argument("--limit-s", type=float, default=3600.0, help="begin no mutant after it")
    parser.add_argument("--built", action="store_true", help="only kernels that are compiled")
    parser.add_argument(
        "--recheck", action="store_true", help="run again what an earlier emulator has missed"
    )
    given = parser.parse_args(arguments)
    try:
        families = chosen(given.family)
    except ValueError as error:
        parser.error(str(error))
    ends = time.monotonic() + given.limit_s
    for family in families:
        if time.monotonic() > ends:
            break
        runtime = Runtime(build.CACHE if family == HOST else build.ALONE)
        for line in _run(runtime, family, ends, built=given.built, recheck=given.recheck):
            print(line, flush=True)
    lines, wrong = said_of(families, read().values())
    print(*lines, *wrong, sep="\n")
    return 1 if wrong else 0


def _spoiled() -> list[Entry]:
    """Return the cases whose calls `host_faults` spoils."""
    cases = entries()
    return [
        cases[name] for name in sorted({host_faults.case_of(each) for each in host_faults.NAMES})
    ]


def _run(
    runtime: Runtime, family: str, ends: float, *, built: bool, recheck: bool
) -> Iterator[str]:
    """Run a family by its name: compile its kernels, find its mutants, and run them."""
    cases = _spoiled() if family == HOST else [representatives.representatives()[family]]
    configs = [case.config for case in cases if case.config is not None]
    if built and not all(build.is_built(config, runtime.folder) for config in configs):
        yield f"{family}: its kernels are not built"
        return
    if configs:
        build.libraries(configs, runtime.cudart, runtime.folder)
    try:
        changes = host_changes(runtime) if family == HOST else changes_of(runtime, cases[0])
    except (ValueError, FaultError, KernelError, PtxError) as error:
        yield f"{family}: {error}"  # the other families are still to run
        return
    yield from run_family(family, sources_of(family, changes), changes, ends, recheck=recheck)


if __name__ == "__main__":
    sys.exit(main())
