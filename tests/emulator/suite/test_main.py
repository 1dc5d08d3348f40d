"""What the suite's command writes and says, and when it runs a case again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.snippet import module
from tests.emulator.suite import __main__ as command
from tests.emulator.suite import row as row_module
from tests.emulator.suite.__main__ import is_done, left_lines, older_of, recheck, row_of, run
from tests.emulator.suite.cases.configs import COOPERATIVE, SM80, SM90, SM100
from tests.emulator.suite.entry import Entry
from tests.emulator.suite.row import Row, Verdict, ptx_of
from tests.emulator.threads.lanes import Shape

NO_RUNTIME = cast("Runtime", None)
FORWARD = FmhaConfig(False, 128, 64, 64, "bf16")
RIGHT = Verdict(0.5, 0, [])


def entry_of(family: str, name: str, last: Verdict = RIGHT) -> Entry:
    """Return a case that is right when it is run early; ``last`` is what is seen of it when it is run late."""

    def verdict(runtime: Runtime, schedule: Schedule) -> Verdict:
        del runtime
        return last if schedule == LATE else RIGHT

    return Entry(family, name, "H100", verdict, template="triton_decode", schedules=(LATE, EAGER))


def recorded(entry: Entry, *schedules: Schedule, source: str = "") -> Row:
    errors = {str(schedule): 0.5 for schedule in schedules}
    row = Row(entry.family, entry.name, "", "H100", source or entry.source, errors)
    row.seconds = 2.5
    return row


WHOLE, HALF, OLD, NEW = (entry_of("first", name) for name in ("whole", "half", "old", "new"))
OTHER = entry_of("second", "other")
CASES = (WHOLE, HALF, OLD, NEW, OTHER)
ROWS = {
    "whole": recorded(WHOLE, EAGER, LATE),
    "half": recorded(HALF, EAGER),
    "old": recorded(OLD, EAGER, LATE, source="of before"),
    "other": recorded(OTHER, EAGER, LATE),
}


def test_cases_without_a_whole_row_of_their_source_are_named_by_family() -> None:
    assert left_lines(CASES, ROWS, ()) == [
        "first: 3 of 4 cases still to run\n  half\n  old\n  new",
        "second: 0 of 1 cases still to run",
    ]


def test_a_case_that_was_right_now_is_not_left_and_a_wrong_one_is() -> None:
    assert left_lines((HALF, NEW), ROWS, {"new"}) == ["first: 1 of 2 cases still to run\n  half"]


def test_of_all_cases_again_those_count_that_were_run_now() -> None:
    assert left_lines((WHOLE, NEW), {}, {"new"}) == ["first: 1 of 2 cases still to run\n  whole"]


def test_a_row_without_a_time_is_not_done() -> None:
    assert is_done(WHOLE, ROWS["whole"])
    assert not is_done(WHOLE, replace(ROWS["whole"], seconds=0.0))
    row, _ = row_of(NO_RUNTIME, WHOLE)
    assert row.seconds > 0


def launched(
    line: str = "mov.u32 %r1, 1;", grid: int = 1, unfinished: tuple[str, ...] = ()
) -> Launch:
    text = module(f".reg .b32 %r<3>; {line}", 0)
    shape = Shape((grid, 1, 1), (32, 1, 1))
    return Launch("k", shape, 0, 0.0, 0, 0, 0, unfinished, frozenset(), text)


class Linked:
    """A runtime of which only the library that kernels are linked with is asked for."""

    cudart = "libcudart.so"


LEFT = Verdict(0.5, 0, [launched(unfinished=("1 loads were never waited for",))])


@pytest.mark.parametrize(
    "last", [Verdict(1.5, 0, []), Verdict(float("nan"), 0, []), Verdict(0.5, 3, []), LEFT]
)
def test_a_case_that_is_wrong_in_its_last_schedule_has_no_row(
    last: Verdict, tmp_path: Path
) -> None:
    wrong = entry_of("first", "wrong", last)
    row, text = row_of(NO_RUNTIME, wrong)
    assert text.startswith("late: ")
    assert row.errors == {"eager": 0.5}
    path = tmp_path / "table.json"
    row_module.write([recorded(wrong, EAGER, LATE), ROWS["whole"]], {}, path)
    right, said = run(NO_RUNTIME, [wrong, NEW], time.monotonic() + 60, path)
    assert (right, said) == ({"new"}, {"wrong": text})
    assert sorted(row_module.read(path)) == ["new", "whole"]
    row, text = row_of(NO_RUNTIME, WHOLE)
    assert (text, row.errors) == ("", {"eager": 0.5, "late": 0.5})


STORE = "k, PTX line 9 (copy.hpp:1018): cp.async.bulk.tensor.3d [%rd8, {%r1}], [%r2]: 8 bulk store operations of 8 threads were never waited for"
LOAD = "k, PTX line 7 (bulk store operations of): ld: 2 loads for the mbarrier at 0x400 were never waited for"
PRODUCT = "1 tcgen05.mma operations were never waited for"


@pytest.mark.parametrize(
    ("config", "left", "said"),
    [
        (SM100, (STORE,), ""),
        (SM100, (STORE, LOAD), f"late: {LOAD}"),
        (SM100, (LOAD,), f"late: {LOAD}"),
        (SM100, (PRODUCT, STORE), f"late: {PRODUCT}"),
        (SM80, (STORE,), f"late: {STORE}"),  # on a B200, too
        (SM90, (STORE,), f"late: {STORE}"),
        (FORWARD, (STORE,), f"late: {STORE}"),
        (None, (STORE,), f"late: {STORE}"),
    ],
)
def test_only_last_stores_of_cutlass_products_for_sm_100_may_be_left(
    config: GemmConfig | FmhaConfig | None, left: tuple[str, ...], said: str
) -> None:
    def verdict(runtime: Runtime, schedule: Schedule) -> Verdict:
        del runtime, schedule
        return Verdict(0.5, 0, [launched(unfinished=left)])

    make, template = (None, "triton_decode") if config is None else (lambda: config, "")
    entry = Entry("x", "x", "B200", verdict, make, template, schedules=(LATE,))
    assert row_of(NO_RUNTIME, entry)[1] == said
    assert entry.undone(verdict(NO_RUNTIME, LATE)) == [line for line in left if line in said]


def test_a_row_of_another_source_keeps_its_verdicts_while_its_launches_run_the_same(
    tmp_path: Path,
) -> None:
    ran: list[Schedule] = []
    launch = launched()

    def verdict(runtime: Runtime, schedule: Schedule) -> Verdict:
        del runtime
        ran.append(schedule)
        return Verdict(0.25, 0, [launch])

    entry = Entry("a", "case", "H100", verdict, template="triton_decode", schedules=(LATE, EAGER))
    old = recorded(entry, EAGER, LATE, source="of before")
    old.ptx = ptx_of([launch])
    path = tmp_path / "table.json"
    row_module.write([old], {}, path)
    run(NO_RUNTIME, [entry], time.monotonic() + 60, path)
    row = row_module.read(path)["case"]
    assert ran == [EAGER]
    assert is_done(entry, row)
    assert (row.errors, row.seconds, row.ptx) == ({"late": 0.5, "eager": 0.25}, 2.5, old.ptx)
    others = (replace(old, ptx="another"), replace(old, ptx=""), replace(old, seconds=0.0))
    for changed in (*others, recorded(entry, EAGER, source="of before")):
        ran.clear()
        assert row_of(NO_RUNTIME, entry, changed)[0].errors == {"eager": 0.25, "late": 0.25}
        assert ran == [EAGER, LATE]
    ran.clear()
    row_module.write([old], {}, path)
    run(NO_RUNTIME, [entry], time.monotonic() + 60, path, again=True)
    assert ran == [EAGER, LATE]


def test_rows_of_an_earlier_emulator_are_watched_again(tmp_path: Path) -> None:
    """A case that is wrong then has no row any more."""
    ran: list[tuple[str, Schedule]] = []

    def case(name: str, error: float) -> Entry:
        def verdict(runtime: Runtime, schedule: Schedule) -> Verdict:
            del runtime
            ran.append((name, schedule))
            return Verdict(error, 0, [])

        facts = {"template": "triton_decode", "schedules": (WATCHED, LATE)}
        return Entry("a", name, "H100", verdict, **facts)  # pyright: ignore[reportArgumentType]

    cases = [case(name, 0.25 + (name == "wrong")) for name in ("right", "wrong", "today", "new")]
    right, wrong, today, _ = cases
    path = tmp_path / "table.json"
    rows = [recorded(each, WATCHED, LATE) for each in (right, wrong, today)]
    rows[2].emulator = row_module.emulator_of_today()
    row_module.write(rows, {}, path)
    assert older_of(cases, path) == [right, wrong]
    assert recheck(NO_RUNTIME, cases, time.monotonic() - 1, path) == {}
    said = recheck(NO_RUNTIME, cases, time.monotonic() + 60, path)
    assert said == {"wrong": "watched: error 1.25, 0 bytes changed"}
    assert ran == [("right", WATCHED), ("wrong", WATCHED)]
    read = row_module.read(path)
    assert sorted(read) == ["right", "today"]
    assert (read["right"].errors, read["right"].seconds) == ({"watched": 0.25, "late": 0.5}, 2.5)
    assert older_of(cases, path) == []


def test_verdicts_of_an_earlier_emulator_are_no_later_ones() -> None:
    """Of a row whose launches run the same PTX from another source."""
    entry = counting(100)
    old = recorded(entry, EAGER, LATE, source="of before")
    old.ptx, old.emulator = row_of(NO_RUNTIME, entry)[0].ptx, "an earlier one"
    assert row_of(NO_RUNTIME, entry)[0].emulator == row_module.emulator_of_today()
    assert row_of(NO_RUNTIME, entry, old)[0].emulator == "an earlier one"


def counting(read: int, name: str = "case") -> Entry:
    """Return a case that is right and reads so many bytes."""
    launch = replace(launched(), traffic=Counter({"global read": read}))

    def verdict(runtime: Runtime, schedule: Schedule) -> Verdict:
        del runtime, schedule
        return Verdict(0.25, 0, [launch])

    return Entry("a", name, "H100", verdict, template="triton_decode", schedules=(EAGER, LATE))


@pytest.mark.parametrize("again", [False, True])
def test_counts_that_are_far_from_those_of_a_row_are_wrong_and_the_row_stays(
    tmp_path: Path, again: bool
) -> None:
    entry, path = counting(20_000), tmp_path / "table.json"
    old = recorded(entry, EAGER, LATE, source="of before")
    old.counts = {"global read": 10_000, "warp instructions": 0}
    row_module.write([old, ROWS["whole"]], {}, path)
    other = counting(20_000, "new")
    ends = time.monotonic() + 60
    right, wrong = run(NO_RUNTIME, [entry, other], ends, path, again=again)
    assert right == {"new"}
    assert list(wrong) == ["case"]
    assert wrong["case"].startswith("global read 10000 before, 20000 now; ")
    assert "--accept-counts" in wrong["case"]
    assert row_module.read(path)["case"] == old
    assert run(NO_RUNTIME, [entry], ends, path, again=again, accept=True) == ({"case"}, {})
    assert row_module.read(path)["case"].counts["global read"] == 20_000


def test_the_command_fails_with_the_counts_unless_they_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, path = counting(5_000), tmp_path / "table.json"
    old = recorded(entry, EAGER, LATE, source="of before")
    old.counts = {"global read": 10_000}
    row_module.write([old], {}, path)
    monkeypatch.setattr(command, "entries", lambda: {"case": entry})

    def no_runtime(_folder: Path) -> Runtime:
        return NO_RUNTIME

    monkeypatch.setattr(command, "Runtime", no_runtime)
    assert command.main([], path) == 1
    said = capsys.readouterr().out
    assert (
        "a: 1 of 1 cases still to run\n  case\nwrong: case: global read 10000 before, 5000" in said
    )
    assert row_module.read(path)["case"] == old
    assert command.main(["--accept-counts"], path) == 0
    assert row_module.read(path)["case"].counts["global read"] == 5_000


def test_the_table_says_how_long_all_cases_took_and_their_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = "import time\nwhile time.process_time() < 0.4: pass"

    def is_built(config: GemmConfig) -> bool:
        return config == SM90

    def libraries(_configs: list[GemmConfig], _cudart: str) -> None:
        time.sleep(0.5)  # waiting for a core takes none of its seconds
        subprocess.run([sys.executable, "-S", "-c", busy], check=True)

    def right(_runtime: Runtime, _schedule: Schedule) -> Verdict:
        return RIGHT

    monkeypatch.setattr(command.build, "is_built", is_built)
    monkeypatch.setattr(command.build, "libraries", libraries)
    cases = [
        Entry("a", name, "H100", right, lambda config=config: config, schedules=(EAGER,))
        for name, config in (("old", SM90), ("new", SM80), ("newer", COOPERATIVE))
    ]
    path = tmp_path / "table.json"
    old = replace(recorded(cases[0], EAGER, source="of before"), compile_s=30.0)
    row_module.write([old], {}, path)
    run(cast("Runtime", Linked()), cases, time.monotonic() + 60, path)
    rows = row_module.read(path)
    assert rows["old"].compile_s == 30.0
    assert rows["new"].compile_s == rows["newer"].compile_s == pytest.approx(0.2, abs=0.15)
    facts = json.loads(path.read_text(encoding="utf-8"))["facts"]
    assert facts["seconds of all"] == round(sum(row.seconds for row in rows.values()))
    assert facts["seconds of compiling"] == round(sum(row.compile_s for row in rows.values()))
    assert facts["seconds of compiling"] >= 30


def test_the_digest_of_launches_is_of_what_they_run() -> None:
    same = launched()
    assert ptx_of([same]) == ptx_of([replace(same, text=same.text + "// a comment\n")])
    others = [launched("mov.u32 %r1, 2;"), launched(grid=2), replace(same, shared_bytes=16)]
    assert len({ptx_of([each]) for each in (same, *others)}) == 4
    assert ptx_of([]) == ""


def test_a_triton_row_is_of_its_template_and_of_what_fills_it_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock = Path.read_text

    def sources(name: str) -> tuple[str, str]:
        def read(path: Path, *facts: str, **options: str) -> str:
            text = stock(path, *facts, **options)
            return text + "#" if path.name == name else text

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", read)
            kinds = ("triton_decode", "triton_attention")
            product, attention = (
                replace(entry_of("a", "x"), template=kind).source for kind in kinds
            )
        return product, attention

    product, attention = sources("nothing")
    assert sources("product.py")[0] != product
    assert sources("decode.jinja")[0] != product
    assert sources("block.py") == (product, sources("block.py")[1])
    assert sources("block.py")[1] != attention
    for other in ("split_k.py", "attention_math.py"):
        assert sources(other) == (product, attention)
