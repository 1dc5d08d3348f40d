"""Where the accumulators of an attention kernel are stored, asked of compiled code."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.child import compile as child_compile
from inductor_plugin.worker.jobs import CppCompileJob, Event
from tests.support.cutlass.toolkit import load_runtime

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

pytestmark = pytest.mark.slow


@pytest.fixture(name="places", scope="module")
def accumulator_places(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Any:
    text = (Path(__file__).parent / "fmha_places.cu").read_text(encoding="utf-8")
    folder = str(tmp_path_factory.mktemp("places"))
    job = CppCompileJob(
        (CppSource("places", text, "fmha_places"),),
        nvcc.command(toolkit, "sm_90a"),
        folder,
        1200,
    )

    def ignore(event: Event) -> None:
        del event

    (done,) = child_compile.run(job, ignore)
    assert (done.status, done.reason) == ("ok", "")
    load_runtime(toolkit)
    return getattr(ctypes.CDLL(str(done.library)), done.symbol)


@pytest.mark.parametrize("dim", [32, 128])
def test_registers_are_stored_where_their_values_belong(dim: int, places: Any) -> None:
    """``gathered`` exchanges pairs among four lanes: done here by hand, with places for values."""
    count = dim // 4
    rows, columns = ((ctypes.c_int * (128 * 2 * count))() for _ in range(2))
    assert places(dim, rows, columns) == 0

    def place(thread: int, i: int, j: int) -> tuple[int, int]:
        at = (thread * 2 + i) * count + j
        return rows[at], columns[at]

    written: set[tuple[int, int]] = set()
    for thread in range(128):
        lane, quad = thread % 4, thread - thread % 4
        for i in range(2):
            row = place(thread, i, 0)[0]
            for j in range(0, count, 8):
                # In turn t a lane gets from lane ^ t the pair whose number is its own.
                chunk = [
                    place(quad + other, i, j + 2 * lane + half)
                    for other in range(4)
                    for half in (0, 1)
                ]
                column = j * 4 + lane * 8
                assert chunk == [(row, column + at) for at in range(8)]
                written.update(chunk)
    assert written == {(row, column) for row in range(64) for column in range(dim)}
