"""The table of programs that the emulator was not written for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from inductor_plugin.problem.target import Target, target
from tests.emulator.held_out import __main__ as table
from tests.emulator.held_out.__main__ import Tutorial
from tests.emulator.machine.schedule import EAGER, LATE, Schedule
from tests.emulator.ptx.syntax import PtxError

H100 = target("H100")
ARCHS = ("sm_80", "sm_90a", "sm_100a")
EVERYWHERE = (
    "vector addition",
    "softmax",
    "matrix product",
    "layer norm",
    "layer norm, gradient",
    "attention",
    "causal attention",
)
FROM_HOPPER = ("persistent product", "persistent product, specialized warps", "scales of 32")
EVERY = {
    *((name, arch) for name in EVERYWHERE for arch in ARCHS),
    *((name, arch) for name in FROM_HOPPER for arch in ARCHS[1:]),
}
"""The rows of the table. `calls` imports Triton, which torch for CPUs comes without."""


def answer(name: str, _gpu: Target, schedule: Schedule) -> float:
    if name == "refused":
        raise PtxError("tcgen05.cp is not known")
    return 0.25 if schedule == EAGER else 0.75


def rows(*names: str, ends: float = float("inf")) -> list[Tutorial]:
    wanted = [(name, H100) for name in names]
    return list(table.run(wanted, answer, (EAGER, LATE), ends))


def test_a_row_has_the_worst_error_of_all_schedules_or_what_is_refused(tmp_path: Path) -> None:
    digest = table.source()
    listed = rows("right", "refused")
    assert listed == [
        Tutorial("right", "sm_90a", digest, 0.75),
        Tutorial("refused", "sm_90a", digest, None, "tcgen05.cp is not known"),
    ]
    path = tmp_path / "tutorials.json"
    assert table.read(path) == {}
    table.write(listed, {"triton": "3"}, path)
    assert list(table.read(path).values()) == sorted(listed, key=lambda row: row.program)


def test_no_program_is_begun_after_the_limit() -> None:
    assert rows("right", ends=time.monotonic() - 1) == []


def test_the_table_is_to_have_each_program_on_each_architecture_that_it_is_for() -> None:
    calls = pytest.importorskip("tests.emulator.held_out.calls", exc_type=ImportError)
    assert {
        (name, gpu.arch)
        for name in calls.PROGRAMS
        for gpu in calls.GPUS
        if not calls.absent(name, gpu)
    } == EVERY


def test_no_committed_program_is_wrong() -> None:
    committed = table.read()
    assert {row.source for row in committed.values()} == {table.source()}
    assert [row for row in committed.values() if row.wrong] == []
    assert set(committed) == EVERY
    assert [key for key, row in committed.items() if row.error is None] == []
    assert Tutorial("x", "sm_90a", "", 1.5).wrong
    assert Tutorial("x", "sm_90a", "", float("nan")).wrong
