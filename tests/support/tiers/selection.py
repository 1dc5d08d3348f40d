"""Which cases `make test` runs: a pure decision from seconds that were measured before.

The seconds are in ``tests/durations.json``, written by ``make durations``. Four rules:

1. Every test function gets the same seconds, ``function_s``, and runs its cheapest case if that takes no more.
   A further case runs if it and all cheaper ones together take no more than `FURTHER_SHARE` of these seconds:
   a function of 200 cases runs some of them. Which of equally cheap cases run depends on their names alone.
2. A file of which this leaves nothing runs its cheapest case, if that takes no more than `FILE_S`.
3. A case marked ``claim`` runs, whatever its function spends, if it takes no more than `CLAIM_S`: what the
   documentation says rests on it.
4. A case marked ``slow`` never runs in `make test`, and a case that the file does not know always does.

``function_s`` is in the file: the most that keeps all of `make test` within `BUDGET_S`. It is chosen when
the file is written, so that the decision about a case depends only on the cases of its file.

The file keeps what the decision needs: a function whose cases together take less than `LISTED_S` is left
out, a function has the mean of its cases, and a case that takes far longer than the others of its function
(usually the first, which compiles for all) has a separate figure.
"""

from __future__ import annotations

import json
import re
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

BUDGET_S = 375.0  # test seconds of a quiet machine; two workers take half of it and 45 s to import, collect and begin each test
LONGEST_S = 20.0  # a test that takes longer has to be marked slow
FILE_S = 2.0  # a file without a case that takes less is left to `make test-slow`
CLAIM_S = 5.0  # 3 s, and more on a busy machine
FURTHER_SHARE = 0.3  # what one more case shows is less than what the first shows
LISTED_S = 1.0
UNKNOWN_SLOW_S = 60.0
_HELPERS, _FIXTURES = "tests/support/", "tests/fixtures/"
_CONFIGURATION = "tests/conftest.py"


@dataclass(frozen=True)
class Case:
    """One case of a test function: its node id, and whether it is marked ``slow`` and ``claim``."""

    node_id: str
    slow: bool = False
    claim: bool = False

    @property
    def file(self) -> str:
        """Return the file of the test."""
        return self.node_id.partition("::")[0]

    @property
    def name(self) -> str:
        """Return the name in the file, with parameters."""
        return self.node_id.partition("::")[2]

    def concerns(self, begin: str) -> bool:
        """Return whether its file, or its parameters, begin so."""
        return begin in self.name if begin.startswith("[") else self.file.startswith(begin)

    @property
    def function(self) -> str:
        """Return the node id without parameters."""
        return f"{self.file}::{self.name.partition('[')[0]}"


@dataclass(frozen=True)
class Durations:
    """Measured seconds, by file and name; names are those of functions and of exceptional cases."""

    function_s: float
    unlisted_s: float
    by_file: Mapping[str, Mapping[str, float]]

    def seconds(self, case: Case) -> float:
        """Return the seconds a case took, zero if unknown or little; an unknown slow case takes a minute."""
        names = self.by_file.get(case.file, {})
        unknown = UNKNOWN_SLOW_S if case.slow else 0.0
        return names.get(case.name, names.get(case.name.partition("[")[0], unknown))

    def first_s(self, case: Case) -> float:
        """Return the seconds a case takes that runs first of its function: it prepares what the others share, too."""
        names = self.by_file.get(case.file, {})
        of_function = case.name.partition("[")[0]
        figures = (each for name, each in names.items() if name.partition("[")[0] == of_function)
        return max(figures, default=self.seconds(case))


@dataclass(frozen=True)
class Selection:
    """The cases that run, in order, and why each of the others does not."""

    kept: tuple[Case, ...]
    left_out: Mapping[str, str]


def select(durations: Durations, cases: Iterable[Case]) -> Selection:
    """Choose the cases of `make test`; ``cases`` has all cases of each file that it has any of."""
    all_cases = tuple(cases)
    left_out = {case.node_id: "marked slow" for case in all_cases if case.slow}
    by_function: defaultdict[str, list[Case]] = defaultdict(list)
    by_file: defaultdict[str, list[Case]] = defaultdict(list)
    for case in all_cases:
        if not case.slow:
            by_function[case.function].append(case)
            by_file[case.file].append(case)
    for function in by_function.values():
        for case in _unaffordable(durations, function):
            if case.claim and durations.seconds(case) <= CLAIM_S:
                continue
            left_out[case.node_id] = f"its function may take {durations.function_s:g} s"
    for file in by_file.values():
        if all(case.node_id in left_out for case in file):
            cheapest = _cheapest_first(durations, file)[0]
            if durations.seconds(cheapest) <= FILE_S:
                del left_out[cheapest.node_id]
    return Selection(tuple(case for case in all_cases if case.node_id not in left_out), left_out)


def _unaffordable(durations: Durations, function: list[Case]) -> Iterable[Case]:
    spent_s = 0.0
    for number, case in enumerate(_cheapest_first(durations, function)):
        spent_s += durations.seconds(case)
        if spent_s > durations.function_s * (FURTHER_SHARE if number else 1.0):
            yield case


def _cheapest_first(durations: Durations, cases: Iterable[Case]) -> list[Case]:
    # The checksum spreads equally cheap cases over the parameters.
    return sorted(
        cases, key=lambda case: (durations.seconds(case), zlib.crc32(case.node_id.encode()))
    )


def part(
    durations: Durations,
    cases: Iterable[Case],
    *,
    limit_s: float,
    seed: str,
    changed: Iterable[str] = (),
) -> tuple[Case, ...]:
    """Choose cases that take ``limit_s`` together: those of the changed files first, then others by ``seed``."""
    all_cases = tuple(cases)
    places = {case.file.rpartition("/")[0] + "/" for case in all_cases}
    # Every test uses that file: it puts none before others.
    begins = {_tests_of(path, places) for path in changed if path != _CONFIGURATION}
    related = {case.node_id for case in all_cases if any(map(case.concerns, begins))}
    drawn = sorted(
        all_cases,
        key=lambda case: (case.node_id not in related, zlib.crc32((seed + case.node_id).encode())),
    )
    left_s = limit_s
    kept: set[str] = set()
    begun: set[str] = set()
    for case in drawn:
        cost_s = durations.seconds(case) if case.function in begun else durations.first_s(case)
        if cost_s <= left_s:
            left_s -= cost_s
            kept.add(case.node_id)
            begun.add(case.function)
    return tuple(case for case in all_cases if case.node_id in kept)


def with_importers(changed: Iterable[str], texts: Mapping[str, str]) -> list[str]:
    """Return changed files; in place of a helper or a fixture of tests the files that use it, by other helpers too.

    Args:
        changed: Paths in the repository.
        texts: The modules below ``tests/`` by their paths.
    """
    result: list[str] = []
    for path in changed:
        if not path.startswith((_HELPERS, _FIXTURES)):
            result.append(path)
            continue
        importers, waiting = set[str](), [path]
        while waiting:
            helper = waiting.pop()
            new = {file for file, text in texts.items() if _uses(text, helper)} - importers
            importers |= new
            waiting += [file for file in new if file.startswith(_HELPERS)]
        result += sorted(each for each in importers if not each.startswith((_HELPERS, _FIXTURES)))
    return result


def _uses(text: str, path: str) -> bool:
    """Return whether a text imports a helper, or names the folder of a fixture: as a module, or in a path."""
    if not path.startswith(_FIXTURES):
        return _imports(text, _module_of(path))
    name = path.removeprefix(_FIXTURES).partition("/")[0]
    return re.search(rf"\bfixtures\W+{re.escape(name)}\b", text) is not None


def _module_of(path: str) -> str:
    """Return the name of the module in a file; of a package, or of a file that is no module, that of its folder."""
    folder, _, file = path.rpartition("/")
    is_module = file.endswith(".py") and file != "__init__.py"
    return (path.removesuffix(".py") if is_module else folder).replace("/", ".")


def _imports(text: str, module: str) -> bool:
    """Return whether a text names a module: in full, or as ``from PACKAGE import MODULE``."""
    package, _, name = module.rpartition(".")
    if package not in text:  # faster than the expression
        return False
    names = rf"from {re.escape(package)} import (?:[^(\n]*|\([^)]*)\b{name}\b"
    return re.search(rf"\b{re.escape(module)}\b|{names}", text) is not None


def _tests_of(path: str, places: Iterable[str]) -> str:
    """Return the test file, the deepest folder of tests, or of a page ``[page.md``: what a changed file concerns."""
    if path.endswith(".md"):
        return f"[{path.rpartition('/')[2]}"
    if path.startswith("tests/") and path.rpartition("/")[2].startswith("test_"):
        return path
    folder = path.removeprefix("inductor_plugin/").removeprefix("tests/").rpartition("/")[0]
    known = set(places)
    while folder and f"tests/{folder}/" not in known:
        folder = folder.rpartition("/")[0]
    return f"tests/{folder or 'package'}/"


def summarize(measured: Mapping[Case, float], budget_s: float = BUDGET_S) -> Durations:
    """Return what is worth writing of the measured seconds, and the seconds that each function may take."""
    by_function: defaultdict[str, dict[Case, float]] = defaultdict(dict)
    for case, seconds in measured.items():
        by_function[case.function][case] = seconds
    by_file: defaultdict[str, dict[str, float]] = defaultdict(dict)
    unlisted_s = 0.0
    for function, seconds in by_function.items():
        file, _, name = function.partition("::")
        if sum(seconds.values()) < LISTED_S:
            unlisted_s += sum(seconds.values())
            continue
        usual = 2 * statistics.median(seconds.values()) + 0.5
        by_file[file][name] = _rounded(
            statistics.fmean(each for each in seconds.values() if each <= usual)
        )
        for case, each in seconds.items():
            if each > usual:
                by_file[file][case.name] = _rounded(each)
    listed = {
        file: dict(sorted(names.items())) for file, names in sorted(by_file.items(), key=_first)
    }
    whole = Durations(0.0, round(unlisted_s, 1), listed)
    return Durations(_affordable_s(whole, tuple(measured), budget_s), whole.unlisted_s, listed)


def renewed(old: Durations, measured: Mapping[Case, float], *, complete: bool) -> Durations:
    """Return the old figures with those of the functions that ran instead of theirs.

    ``complete`` says that every case that is not slow ran, so that ``function_s`` follows from these.
    """
    new = summarize(measured)
    ran = {case.function for case in measured}
    by_file: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for file, names in old.by_file.items():
        kept = {
            name: seconds
            for name, seconds in names.items()
            if Case(f"{file}::{name}").function not in ran
        }
        if kept:
            by_file[file] = kept
    for file, names in new.by_file.items():
        by_file[file].update(names)
    limits = new if complete else old
    return Durations(limits.function_s, limits.unlisted_s, by_file)


def _first(item: tuple[str, object]) -> str:
    return item[0]


def _affordable_s(durations: Durations, cases: tuple[Case, ...], budget_s: float) -> float:
    """Return the most seconds, in tenths, that each function may take within the budget."""
    affordable_s = 0.0
    for tenths in range(1, int(10 * LONGEST_S) + 1):
        tried = Durations(tenths / 10, durations.unlisted_s, durations.by_file)
        kept = select(tried, cases).kept
        if durations.unlisted_s + sum(map(tried.seconds, kept)) > budget_s:
            break
        affordable_s = tried.function_s
    return affordable_s


def _rounded(seconds: float) -> float:
    return round(seconds, 2 if seconds < 1 else 1)


def read(path: Path) -> Durations:
    """Return what the file says."""
    text = json.loads(path.read_text(encoding="utf-8"))
    return Durations(text["function_s"], text["unlisted_s"], text["seconds"])


def write(path: Path, durations: Durations) -> None:
    """Write the file, one line for a function."""
    text = {
        "function_s": durations.function_s,
        "unlisted_s": durations.unlisted_s,
        "seconds": durations.by_file,
    }
    path.write_text(json.dumps(text, indent=1, sort_keys=True) + "\n", encoding="utf-8")
