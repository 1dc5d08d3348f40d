"""Scores of mutants: how a stopped run goes on, what the table says of them, and which families the command runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from inductor_plugin.errors import KernelError
from inductor_plugin.templates.cutlass.config import GemmConfig
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.kernels import build, mutants
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import host_faults, mutations, score
from tests.emulator.suite.cases.configs import SM90, SM100
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.explained.reasons import NOT_MODELLED
from tests.emulator.suite.mutations import Change, chosen, first_that_notices, run_family
from tests.emulator.suite.representatives import TRITON
from tests.emulator.suite.row import Verdict, ptx_of
from tests.emulator.suite.score import HOST, Score
from tests.emulator.threads.lanes import Shape

LATER, PAST = time.monotonic() + 1e6, time.monotonic() - 1


class Script:
    """Mutants with answers that are written down; it counts how often each is run."""

    def __init__(self, *answers: tuple[str, str]) -> None:
        self.runs = [0] * len(answers)
        self._answers = answers

    def changes(self, opcode: str = "bar.sync", ptx: str = "") -> dict[str, list[Change]]:
        numbers = range(len(self._answers))
        return {opcode: [self._change(number, ptx) for number in numbers], "red": []}

    def _change(self, number: int, ptx: str = "") -> Change:
        def run() -> tuple[str, str]:
            self.runs[number] += 1
            return self._answers[number]

        return Change(f"{number};", run, ptx=ptx)


NOTICED, LATELY, MISSED, BROKEN = ("watched", ""), ("late", ""), ("", ""), ("", "no such thing")
FIVE = (NOTICED, NOTICED, MISSED, LATELY, BROKEN)


def of(source: str) -> dict[str, str]:
    """Return a kernel's source by opcode."""
    return dict.fromkeys(Script().changes(), source)


def ran(script: Script, path: Path, count: int = 99, source: str = "text") -> Score:
    """Run mutants until so many lines were printed, as if the process was stopped then; return what the table has of them."""
    lines = run_family("sm90 x", of(source), script.changes(), LATER, path)
    for _, _ in zip(range(count), lines, strict=False):
        pass
    lines.close()
    return score.read(path)["sm90 x", "bar.sync"]


def test_a_stopped_run_goes_on_behind_the_last_mutant(tmp_path: Path) -> None:
    script, path = Script(*FIVE), tmp_path / "mutants.json"
    first = ran(script, path, 2)
    assert (first.total, first.run, first.noticed) == (5, 2, {"watched": 2})
    whole = ran(script, path)
    assert (whole.run, whole.noticed, whole.missed) == (5, {"watched": 2, "late": 1}, {2: "2;"})
    assert whole.unknown == {4: "4;: no such thing"}
    assert whole.kernel == "text"
    assert script.runs == [1, 1, 1, 1, 1]
    assert ran(script, path) == whole
    assert script.runs == [1, 1, 1, 1, 1]


def test_mutants_of_another_source_or_ptx_or_other_instructions_are_run_anew(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mutants.json"
    ran(Script(*FIVE), path)
    again = Script(*FIVE)
    ran(again, path, source="another text")
    assert again.runs == [1, 1, 1, 1, 1]
    fewer = Script(*FIVE[:4])
    assert ran(fewer, path, source="another text").total == 4
    assert fewer.runs == [1, 1, 1, 1]
    larger = Script(*FIVE[:4])
    list(run_family("sm90 x", of("another text"), larger.changes(ptx="of a larger K"), LATER, path))
    assert larger.runs == [1, 1, 1, 1]


@pytest.mark.parametrize("recheck", [False, True])
def test_what_an_earlier_emulator_has_missed_is_run_again_if_asked_for(
    tmp_path: Path, recheck: bool
) -> None:
    path = tmp_path / "mutants.json"
    before = ran(Script(*FIVE, MISSED), path)
    before.emulator, before.unused = "an earlier one", [2, 5]
    score.write({("sm90 x", "bar.sync"): before}, {}, path)
    later = Script(*(NOTICED,) * 5, MISSED)
    for _ in range(2):  # the second time there is nothing left
        list(run_family("sm90 x", of("text"), later.changes(), LATER, path, recheck=recheck))
    assert later.runs == ([0, 0, 1, 0, 1, 1] if recheck else [0] * 6)
    after = score.read(path)["sm90 x", "bar.sync"]
    if recheck:
        assert (after.noticed, after.unknown) == ({"watched": 4, "late": 1}, {})
        assert (after.missed, after.unused, after.run) == ({5: "5;"}, [5], 6)
    else:
        assert after == before


def test_no_mutant_is_begun_after_the_limit_and_totals_are_known_nevertheless(
    tmp_path: Path,
) -> None:
    script, path = Script(*FIVE), tmp_path / "mutants.json"
    assert list(run_family("sm90 x", of("text"), script.changes(), PAST, path)) == []
    assert script.runs == [0] * 5
    share = score.shares(score.read(path).values())["sm90 x"]
    assert (share.mutants, share.run, share.whole) == (5, 0, False)
    assert "5 of 5 still to run" in str(share)


def test_a_missed_mutant_that_no_output_depends_on_is_redundant(tmp_path: Path) -> None:
    path, asked = tmp_path / "mutants.json", list[int]()
    changes = Script(MISSED, NOTICED, MISSED, BROKEN).changes()

    def is_unused(number: int) -> bool:
        asked.append(number)
        return number == 2

    listed = changes["bar.sync"]
    listed[:] = [
        replace(each, is_unused=partial(is_unused, number)) for number, each in enumerate(listed)
    ]
    lines = list(run_family("sm90 x", of("text"), changes, LATER, path))
    assert [line.split(": ")[1] for line in lines] == [
        "missed",
        "watched",
        "unused",
        "no such thing",
    ]
    assert asked == [0, 2]
    read = score.read(path)["sm90 x", "bar.sync"]
    assert (read.missed, read.unused) == ({0: "0;", 2: "2;"}, [2])
    share = score.shares([read])["sm90 x"]
    assert (share.redundant, share.unexplained) == (1, 2)


def test_families_of_other_processes_stay_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "mutants.json"
    lines = run_family("sm90 x", of("text"), Script(*FIVE).changes(), LATER, path)
    next(lines)
    other = Score("sm80", "bar.sync", "digest", 1, {"late": 1})
    score.write({**score.read(path), ("sm80", "bar.sync"): other}, {}, path)
    list(lines)
    assert score.read(path)["sm80", "bar.sync"] == other
    assert [each.name for each in tmp_path.iterdir()] == ["mutants.json"]


def of_today(family: str, changes: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(changes, f"source of {family}")


def current() -> list[Score]:
    """Return the scores of a table that has all."""
    changes = [(family, "bar.sync") for family in mutations.FAMILIES if family != HOST]
    changes += [(HOST, name) for name in host_faults.NAMES]
    return [
        Score(family, change, "a", 1, {"late": 1}, kernel=f"source of {family}")
        for family, change in changes
    ]


def test_a_table_of_other_kernels_or_without_a_fault_is_outdated() -> None:
    table, first = current(), host_faults.NAMES[0]
    assert mutations.outdated(table, of_today) == []
    old = [replace(each, kernel="x") if each.family == "tree" else each for each in table]
    assert mutations.outdated(old, of_today) == ["tree, bar.sync: of another source"]
    fewer = [each for each in table if each.family != "sm80" and each.change != first]
    assert mutations.outdated(fewer, of_today) == [
        "sm80: not begun",
        f"{HOST}, {first}: not in the table",
    ]
    more = [*table, Score(HOST, "gone", "a", 1), Score("sm70", "bar.sync", "a", 1)]
    assert mutations.outdated(more, of_today) == [
        f"{HOST}, gone: no such change",
        "sm70: no family",
    ]


def test_the_source_of_a_score_is_that_of_the_case_whose_kernel_or_call_is_changed() -> None:
    cases, name = entries(), host_faults.NAMES[0]
    host = mutations.sources_of(HOST, [name])
    assert host == {name: cases[host_faults.case_of(name)].source}
    gradient = TRITON["triton gradient"]
    assert mutations.sources_of("triton gradient", ["red"]) == {"red": cases[gradient].source}


def test_instructions_that_are_not_modelled_are_taken_out_all_the_same() -> None:
    assert NOT_MODELLED.keys() <= set(mutants.SYNCHRONISING)


def test_mutants_are_of_kernels_that_were_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults of host code change no PTX, and take what the cases have compiled."""
    folders: dict[str, Path] = {}

    def noted(runtime: Path, family: str, _ends: float, **_options: bool) -> list[str]:
        folders[family] = runtime
        return []

    monkeypatch.setattr(mutations, "Runtime", lambda folder: folder)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(mutations, "_run", noted)
    mutations.main(["--family", "sm80", "--family", "host"])
    assert folders == {"sm80": build.ALONE, HOST: build.CACHE}


def test_families_are_named_whole_or_by_their_first_word() -> None:
    assert chosen([]) == list(mutations.FAMILIES)
    assert chosen(["sm90"]) == [each for each in mutations.FAMILIES if each.startswith("sm90 ")]
    assert chosen(["fmha backward", "host"]) == [HOST, "fmha backward"]
    with pytest.raises(ValueError, match="no family 'sm9'; there are host code, sm80"):
        chosen(["sm90", "sm9"])


def raising(error: Exception) -> Callable[[Schedule], bool]:
    def wrong(_schedule: Schedule) -> bool:
        raise error

    return wrong


def test_a_refusal_is_noticed_and_what_the_emulator_cannot_do_is_not() -> None:
    assert first_that_notices(lambda schedule: schedule == LATE) == ("late", "")
    assert first_that_notices(lambda schedule: False) == ("", "")
    assert first_that_notices(raising(FaultError("a race"))) == ("watched", "")
    assert first_that_notices(raising(KernelError("refused"))) == ("watched", "")
    assert first_that_notices(raising(UnmodelledError("a box"))) == ("", "a box")
    assert first_that_notices(raising(IndexError("3"))) == ("", "IndexError: 3")


def test_an_interrupt_is_no_answer() -> None:
    def wrong(_schedule: Schedule) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first_that_notices(wrong)


class Edits:
    """A runtime that remembers which text its modules have."""

    def __init__(self, *texts: str) -> None:
        self._texts, self.texts = texts, texts

    @contextmanager
    def edited(self, edit: Callable[[str], str]) -> Generator[None]:
        self.texts = tuple(edit(text) for text in self._texts)
        yield
        self.texts = self._texts


def entry_of(run: Callable[[Edits, Schedule], Verdict]) -> Entry:
    return Entry("sm90", "x", "H100", cast("Callable[[Runtime, Schedule], Verdict]", run))


def module(*lines: str) -> str:
    """Return the text of a kernel k."""
    return "\n".join((".visible .entry k()", "{", *lines, "}"))


BARRIER = module("bar.sync 0;")


def launch_of(text: str, *left: str) -> Launch:
    lines = frozenset((3, 4))
    return Launch("k", Shape((1, 1, 1), (32, 1, 1)), 0, 0.0, 0, 0, 0, left, lines, text)


def test_the_module_of_a_mutant_is_changed_and_no_other() -> None:
    both = (module("bar.sync 0;", "st.shared.b32 [%r1], %r2;"), module("bar.sync 0;", "ret;"))
    seen: list[tuple[str, ...]] = []

    def run(runtime: Edits, _schedule: Schedule) -> Verdict:
        seen.append(runtime.texts)
        error = 0.0 if runtime.texts == both else 2.0
        return Verdict(error, 0, [launch_of(text) for text in runtime.texts])

    changes = mutations.changes_of(cast("Runtime", Edits(*both)), entry_of(run))
    assert {opcode: len(listed) for opcode, listed in changes.items() if listed} == {
        "bar.sync": 2,
        "st.shared": 1,
    }
    for change in changes["bar.sync"]:
        assert change.run() == ("watched", "")
        assert change.ptx == ptx_of(launch_of(text) for text in both)
    assert seen[-2:] == [
        (module("bar.warp.sync -1;", "st.shared.b32 [%r1], %r2;"), both[1]),
        (both[0], module("bar.warp.sync -1;", "ret;")),
    ]


STORE, LOAD = (
    f"1 {what} of 1 threads were never waited for" for what in ("bulk store operations", "loads")
)


@pytest.mark.parametrize(
    ("of_mutant", "noticed"), [((STORE,), ""), ((), ""), ((STORE, LOAD), "late"), ((LOAD,), "late")]
)
def test_only_stores_that_a_kernel_leaves_itself_are_no_sign_of_a_mutant(
    of_mutant: tuple[str, ...], noticed: str
) -> None:
    def run(runtime: Edits, schedule: Schedule) -> Verdict:
        is_kernel = runtime.texts == (BARRIER,)
        left = ((STORE,) if is_kernel else of_mutant) if schedule.late else ()
        return Verdict(0.0, 0, [launch_of(BARRIER, *left)])

    entry = replace(entry_of(run), gpu="B200", make=lambda: SM100)
    changes = mutations.changes_of(cast("Runtime", Edits(BARRIER)), entry)
    assert changes["bar.sync"][0].run() == (noticed, "")


def test_a_mutant_that_leaves_stores_in_another_schedule_than_the_kernel_is_noticed() -> None:
    def run(runtime: Edits, schedule: Schedule) -> Verdict:
        is_kernel = runtime.texts == (BARRIER,)
        left = (STORE,) if schedule.late or not is_kernel else ()
        return Verdict(0.0, 0, [launch_of(BARRIER, *left)])

    entry = replace(entry_of(run), gpu="B200", make=lambda: SM100)
    changes = mutations.changes_of(cast("Runtime", Edits(BARRIER)), entry)
    assert changes["bar.sync"][0].run() == ("watched", "")


@pytest.mark.parametrize(("config", "left"), [(SM100, LOAD), (SM90, STORE)])
def test_a_kernel_that_leaves_anything_else_is_wrong_itself(config: GemmConfig, left: str) -> None:
    def run(_runtime: Edits, schedule: Schedule) -> Verdict:
        return Verdict(0.0, 0, [launch_of(BARRIER, *((left,) if schedule.late else ()))])

    entry = replace(entry_of(run), gpu="B200", make=lambda: config)
    with pytest.raises(ValueError, match=f"x is wrong itself, late: {left}"):
        mutations.changes_of(cast("Runtime", Edits(BARRIER)), entry)


@pytest.mark.parametrize("error", [2.0, math.nan])
def test_a_kernel_that_is_wrong_itself_has_no_mutants(error: float) -> None:
    def run(_runtime: Edits, schedule: Schedule) -> Verdict:
        return Verdict(error if schedule == LATE else 0.0, 0, [])

    with pytest.raises(ValueError, match="x is wrong itself, late"):
        mutations.changes_of(cast("Runtime", Edits()), entry_of(run))


def test_the_first_schedule_looks_for_races() -> None:
    assert mutations.SCHEDULES[0] == WATCHED
    assert EAGER not in mutations.SCHEDULES  # `WATCHED` is that, and looks for races, too
