"""Which tests `make test` runs, decided from durations alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.tiers import marks, options, selection
from tests.support.tiers.selection import Case, Durations

FOLDERS = ("inductor_plugin", "templates", "cache", "tests", "benchmarks")


def _cases(file: str, function: str, count: int) -> list[Case]:
    return [Case(f"tests/{file}.py::{function}[{number}]") for number in range(count)]


def _durations(function_s: float, **names: float) -> Durations:
    return Durations(function_s, 0.0, {"tests/a.py": names})


def test_a_function_runs_as_many_cases_as_its_seconds_allow() -> None:
    cases = _cases("a", "test_x", 10) + _cases("a", "test_y", 2)

    chosen = selection.select(_durations(4.0, test_x=0.29, test_y=3.9), cases)

    assert [case.function for case in chosen.kept] == ["tests/a.py::test_x"] * 4 + [
        "tests/a.py::test_y"
    ]
    assert len(chosen.left_out) == 7
    assert set(chosen.left_out.values()) == {"its function may take 4 s"}


def test_the_order_of_the_cases_is_kept_and_does_not_matter_for_the_choice() -> None:
    cases = _cases("a", "test_x", 10)
    durations = _durations(4.0, test_x=0.29)

    kept = selection.select(durations, cases).kept
    backwards = selection.select(durations, reversed(cases)).kept

    assert kept == tuple(reversed(backwards))
    assert kept != tuple(cases[:4])  # spread over the parameters


def test_a_case_that_takes_longer_than_its_function_has_its_own_figure() -> None:
    cases = _cases("a", "test_x", 3)
    durations = Durations(2.0, 0.0, {"tests/a.py": {"test_x": 0.25, "test_x[0]": 7.0}})

    assert selection.select(durations, cases).kept == tuple(cases[1:])


def test_a_case_that_the_file_does_not_know_runs() -> None:
    cases = _cases("b", "test_new", 3)

    assert selection.select(_durations(0.0), cases).kept == tuple(cases)


def test_a_slow_case_never_runs_though_nothing_is_known_of_it() -> None:
    slow = Case("tests/a.py::test_x", slow=True)

    chosen = selection.select(_durations(20.0), [slow])

    assert chosen.kept == ()
    assert chosen.left_out == {"tests/a.py::test_x": "marked slow"}


@pytest.mark.parametrize(
    ("seconds", "kept"), [(selection.CLAIM_S, 2), (selection.CLAIM_S + 0.1, 1)]
)
def test_a_claim_runs_whatever_its_function_spends_if_it_is_cheap(
    seconds: float, kept: int
) -> None:
    claim = Case("tests/a.py::test_claim", claim=True)
    cases = [claim, Case("tests/a.py::test_x"), Case("tests/a.py::test_y")]

    chosen = selection.select(_durations(1.0, test_claim=seconds, test_x=0.5, test_y=1.1), cases)

    assert chosen.kept == (claim, cases[1])[2 - kept :]
    assert (claim.node_id in chosen.left_out) is (kept == 1)


def test_a_slow_claim_does_not_run() -> None:
    claim = Case("tests/a.py::test_claim", slow=True, claim=True)

    assert selection.select(_durations(1.0, test_claim=0.1), [claim]).kept == ()


@pytest.mark.parametrize(("cheapest_s", "kept"), [(1.9, 1), (2.1, 0)])
def test_a_file_that_would_be_left_out_runs_its_cheapest_case(cheapest_s: float, kept: int) -> None:
    cases = [Case("tests/a.py::test_x"), Case("tests/a.py::test_y")]

    chosen = selection.select(_durations(1.0, test_x=25.0, test_y=cheapest_s), cases)

    assert chosen.kept == tuple(cases[1:])[:kept]


def test_a_part_begins_with_what_changed_and_stays_within_its_seconds() -> None:
    cases = _cases("worker/test_timer", "test_x", 3) + _cases("cost/test_tile", "test_x", 30)
    durations = Durations(2.0, 0.0, {case.file: {"test_x": 10.0} for case in cases})
    changed = ["inductor_plugin/worker/process.py", "README.md"]

    part = selection.part(durations, cases, limit_s=50, seed="1", changed=changed)
    other = selection.part(durations, cases, limit_s=50, seed="2", changed=changed)

    assert len(part) == len(other) == 5
    assert part[:3] == other[:3] == tuple(cases[:3])
    assert part != other


def test_the_first_case_of_a_part_prepares_what_its_function_shares() -> None:
    cases = _cases("a", "test_x", 5)
    durations = Durations(2.0, 0.0, {"tests/a.py": {"test_x": 1.0, "test_x[9]": 30.0}})

    assert selection.part(durations, cases, limit_s=29, seed="1") == ()
    assert len(selection.part(durations, cases, limit_s=32, seed="1")) == 3


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("inductor_plugin/worker/process.py", "tests/worker/"),
        ("templates/triton/fp8.py", "tests/templates/triton/"),
        ("cache/store.py", "tests/cache/"),
        ("inductor_plugin/registry.py", "tests/package/"),
        ("tests/cost/test_tile.py", "tests/cost/test_tile.py"),
        ("tests/gpu/cases/registry.py", "tests/gpu/"),
        ("templates/cutlass/source/call.h", "tests/templates/cutlass/"),
        ("benchmarks/gemm/arm.py", "tests/benchmarks/"),
        ("docs/ship.md", "tests/docs/test_pages.py::test[ship.md-0]"),
        ("README.md", "tests/docs/test_pages.py::test[README.md]"),
    ],
)
def test_a_changed_file_concerns_the_tests_of_its_package(changed: str, tests: str) -> None:
    name = f"{tests}test_x.py" if tests.endswith("/") else tests
    cases = [Case(name if "::" in name else f"{name}::test")]
    others = [*_cases("elsewhere/test_y", "test", 50), Case("tests/docs/test_pages.py::test[a.md]")]
    durations = Durations(0.0, 0.0, {case.file: {"test": 10.0} for case in (*cases, *others)})

    part = selection.part(durations, others + cases, limit_s=10, seed="", changed=[changed])

    assert part == tuple(cases)


def test_the_configuration_of_all_tests_puts_none_before_others() -> None:
    cases = [Case(f"tests/{folder}/test_x.py::test") for folder in ("package", *"abcdefgh")]
    durations = Durations(0.0, 0.0, {case.file: {"test": 10.0} for case in cases})

    def part(*changed: str) -> tuple[Case, ...]:
        return selection.part(durations, cases, limit_s=10, seed="", changed=changed)

    assert part("tests/conftest.py") == part()
    assert part("tests/conftest.py", "release/x.py") == part("release/x.py") == tuple(cases[:1])


HELPED = {
    "tests/ops/test_a.py": "from tests.support.native import (\n    host_kernels,\n    sites,\n)",
    "tests/ops/test_b.py": "from tests.support.native.sites import opened",
    "tests/ops/test_c.py": "from tests.support.native import host_kernels",
    "tests/gpu/forced/d.py": "from tests.support.lab import Lab",
    "tests/support/lab.py": "from tests.support.native import sites",
    "tests/support/native/host_kernels.py": "import tests.support.native.sites_of_others",
    "tests/conftest.py": "from tests.support.warned import forget",
    "tests/end_to_end/test_old.py": "from tests.fixtures.old import make",
    "tests/docs/test_pages.py": 'REPOSITORY / "tests" / "fixtures" / "old" / "cache"',
    "tests/support/opened.py": "FILE = 'tests/fixtures/old/cache'",
    "tests/cli/test_ls.py": "from tests.support import opened",
    "tests/cli/test_older.py": "from tests.fixtures.older import make",
    "tests/fixtures/old/make.py": "FOLDER = 'tests/fixtures/old'",
}


@pytest.mark.parametrize(
    ("helper", "importers"),
    [
        (
            "tests/support/native/sites.py",
            ["tests/gpu/forced/d.py", "tests/ops/test_a.py", "tests/ops/test_b.py"],
        ),
        ("tests/support/native/host_kernels.py", ["tests/ops/test_a.py", "tests/ops/test_c.py"]),
        ("tests/support/lab.py", ["tests/gpu/forced/d.py"]),
        (
            "tests/support/native/__init__.py",
            [
                "tests/gpu/forced/d.py",
                "tests/ops/test_a.py",
                "tests/ops/test_b.py",
                "tests/ops/test_c.py",
            ],
        ),
        (
            "tests/support/native/kernel.cpp",
            [
                "tests/gpu/forced/d.py",
                "tests/ops/test_a.py",
                "tests/ops/test_b.py",
                "tests/ops/test_c.py",
            ],
        ),
        ("tests/support/warned.py", ["tests/conftest.py"]),
        ("tests/support/unused.py", []),
        (
            "tests/fixtures/old/cache/records/a.json",
            ["tests/cli/test_ls.py", "tests/docs/test_pages.py", "tests/end_to_end/test_old.py"],
        ),
        ("tests/fixtures/older/make.py", ["tests/cli/test_older.py"]),
    ],
)
def test_a_changed_helper_of_tests_concerns_what_imports_it(
    helper: str, importers: list[str]
) -> None:
    changed = ["cache/store.py", helper]

    assert selection.with_importers(changed, HELPED) == ["cache/store.py", *importers]


def test_the_summary_keeps_means_and_exceptions_and_fits_the_budget() -> None:
    dear = _cases("a", "test_x", 100)
    measured = dict.fromkeys(dear, 1.0) | {dear[0]: 9.0}
    measured |= dict.fromkeys(_cases("a", "test_cheap", 5), 0.1)
    measured[Case("tests/a.py::test_marked", slow=True)] = 500.0

    durations = selection.summarize(measured, budget_s=4.5)

    assert durations.by_file == {
        "tests/a.py": {"test_marked": 500.0, "test_x": 1.0, "test_x[0]": 9.0}
    }
    assert durations.unlisted_s == 0.5
    assert durations.function_s == 16.6  # four cases of 1 s in 0.3 of it; five are too many


def test_figures_of_functions_that_did_not_run_are_kept() -> None:
    old = Durations(3.0, 5.0, {"tests/a.py": {"test_x": 1.5, "test_x[0]": 4.0, "test_y": 2.0}})
    measured = {Case("tests/a.py::test_x[1]"): 7.0}

    some = selection.renewed(old, measured, complete=False)
    complete = selection.renewed(old, measured, complete=True)

    assert some == Durations(3.0, 5.0, {"tests/a.py": {"test_x": 7.0, "test_y": 2.0}})
    assert complete.by_file == some.by_file
    assert (complete.function_s, complete.unlisted_s) == (20.0, 0.0)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    durations = Durations(2.5, 3.0, {"tests/a.py": {"test_x": 1.25}})

    selection.write(tmp_path / "durations.json", durations)

    assert selection.read(tmp_path / "durations.json") == durations


def test_the_committed_file_knows_only_functions_that_are_there(repository: Path) -> None:
    gone: list[str] = []
    for file, names in selection.read(options.DURATIONS).by_file.items():
        path = repository / file
        tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        functions = {Case(f"{file}::{name}").function for name in names}
        gone += sorted(each for each in functions if each.rpartition("::")[2] not in there)
    assert gone == [], "take them out of tests/durations.json, or `make durations`"


def test_the_committed_file_leaves_seconds_to_each_function() -> None:
    durations = selection.read(options.DURATIONS)

    assert durations.function_s >= 0.5, (
        f"{durations.unlisted_s:.0f} of the {selection.BUDGET_S:.0f} s of `make test` go to functions that take less than "
        f"{selection.LISTED_S:g} s, and {durations.function_s:g} s are left for each other one: make tests faster or cut cases "
        "(`--durations=50` names the slowest), or raise BUDGET_S in tests/support/tiers/selection.py, with the figures in CONTRIBUTING.md"
    )
    assert 0.0 < durations.unlisted_s < selection.BUDGET_S


def test_the_figures_of_other_tests_are_dropped_only_if_all_that_are_quick_run() -> None:
    def whole(*, named: bool = False, **differs: str) -> bool:
        option = SimpleNamespace(**{"markexpr": "", "keyword": "", "tier": None} | differs)
        return options.runs_all_quick_tests(option, named=named)

    assert whole()
    assert whole(markexpr="not slow")
    assert not whole(markexpr="compat")
    assert not whole(keyword="config")
    assert not whole(tier="fast")
    assert not whole(named=True)


PAGES = "tests/tuning/report/page/browser/"
_MADE_ONCE = "the first test that opens a page makes it for all others: 10,000 records, or compiles of a minute"
SHORT_AND_SLOW = {f"{PAGES}test_use.py": _MADE_ONCE, f"{PAGES}test_paper.py": _MADE_ONCE}
"""Files whose slow tests need what none of their own seconds has, and what that is."""


def test_what_took_longer_than_20_s_is_marked_slow(repository: Path) -> None:
    unmarked = {
        file: marks.long_and_unmarked(names, (repository / file).read_text("utf-8"))
        for file, names in selection.read(options.DURATIONS).by_file.items()
        if max(names.values()) > selection.LONGEST_S
    }
    assert {file: names for file, names in unmarked.items() if names} == {}


def test_what_took_less_than_5_s_is_not_marked_slow(repository: Path) -> None:
    """It would never run in `make test`. What is not in the file took less than a second, or is not known."""
    short: dict[str, list[str]] = {}
    for file, names in selection.read(options.DURATIONS).by_file.items():
        text = (repository / file).read_text("utf-8")
        if marks.SLOW.search(text) and (functions := marks.short_and_slow(names, text)):
            short[file] = functions
    assert {file: each for file, each in short.items() if file not in SHORT_AND_SLOW} == {}
    assert short.keys() == SHORT_AND_SLOW.keys(), "what has no need of an exception has none"


SLOW_FILE = (
    "pytestmark = [pytest.mark.compat, pytest.mark.slow]\ndef test_x(): ...\ndef test_y(): ..."
)
SLOW_FUNCTION = "@pytest.mark.slow\ndef test_x(): ...\ndef test_y(): ..."


@pytest.mark.parametrize(
    ("text", "names", "short"),
    [
        (SLOW_FUNCTION, {"test_x": 4.9, "test_y": 9.0}, ["test_x"]),
        (SLOW_FUNCTION, {"test_x": 5.0, "test_y": 0.5}, []),
        (SLOW_FUNCTION, {"test_x": 0.5, "test_x[0]": 5.0}, []),
        (SLOW_FILE, {"test_x": 4.9, "test_y": 5.0}, []),
        (SLOW_FILE, {"test_x": 4.9, "test_y": 1.0}, ["test_x", "test_y"]),
    ],
)
def test_a_mark_counts_for_what_it_is_written_at(
    text: str, names: dict[str, float], short: list[str]
) -> None:
    assert marks.short_and_slow(names, text) == short


SLOW_CASE = "@pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.slow)])\ndef test_x(a): ..."
SLOW_IDS = (
    "of = pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, id='c', marks="
    "pytest.mark.slow)], ids=['a', 'b', '3'])\n@of\ndef test_x(a): ..."
)
SLOW_LOOP = (
    "@pytest.mark.parametrize(('a', 'b'), [(1, 'd'), *(pytest.param(a, 'd', marks=pytest.mark.slow) for a in MORE)])\n"
    "def test_x(a): ..."
)
SLOW_FIXTURE = (
    "@pytest.fixture(name='a', params=[1, pytest.param(2, marks=[pytest.mark.slow])])\n"
    "def an_a(): ...\ndef test_x(a): ...\ndef test_y(b): ..."
)


@pytest.mark.parametrize(
    ("text", "names", "unmarked"),
    [
        (SLOW_FUNCTION, {"test_x": 20.1, "test_x[0]": 99.0, "test_y": 20.0}, []),
        (SLOW_FUNCTION, {"test_y": 20.1, "test_y[0]": 20.2}, ["test_y", "test_y[0]"]),
        (SLOW_FILE, {"test_x": 20.1, "test_y[0]": 20.1}, []),
        (SLOW_CASE, {"test_x": 1.0, "test_x[2]": 20.1}, []),
        (SLOW_FIXTURE, {"test_x[2]": 20.1}, []),
        (SLOW_FIXTURE, {"test_y[2]": 20.1, "test_x": 20.1}, ["test_y[2]"]),
        (
            SLOW_CASE,
            {"test_x[1]": 20.1, "test_x[2-a]": 20.1, "test_x[12]": 20.1},
            ["test_x[12]", "test_x[1]"],
        ),
        (SLOW_CASE, {"test_x": 20.1}, []),
        (SLOW_CASE, {"test_x": 20.1, "test_x[2]": 99.0}, ["test_x"]),  # a mean of the others
        (SLOW_FIXTURE, {"test_x[1]": 20.1}, ["test_x[1]"]),
        (SLOW_IDS, {"test_x[a]": 20.1, "test_x[b]": 20.1, "test_x[c]": 20.1}, ["test_x[a]"]),
        (SLOW_LOOP, {"test_x[1-d]": 20.1, "test_x[2-d]": 20.1}, ["test_x[1-d]"]),
    ],
)
def test_what_is_long_has_a_mark_of_its_own_or_of_its_case(
    text: str, names: dict[str, float], unmarked: list[str]
) -> None:
    assert marks.long_and_unmarked(names, text) == unmarked


def test_pytest_enters_every_folder_of_tests(pytestconfig: pytest.Config, repository: Path) -> None:
    """42 tests of a folder called `build` never ran: pytest does not enter it unless it is named."""
    left_out: list[str] = pytestconfig.getini("norecursedirs")
    files = [file.relative_to(repository) for file in repository.glob("tests/**/test_*.py")]
    unseen = [
        str(file)
        for file in files
        if any(fnmatch(folder, name) for folder in file.parts[:-1] for name in left_out)
    ]
    assert files
    assert unseen == []


def test_ruff_reads_every_file(repository: Path) -> None:
    """The option that leaves out `build/`, where pip works, once left out a package of that name."""
    command = [sys.executable, "-m", "ruff", "check", "--show-files", *FOLDERS]
    shown = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    files = {str(file) for folder in FOLDERS for file in (repository / folder).rglob("*.py")}
    assert files - set(shown.stdout.split()) == set()
