"""A fusion that two ranks come to before it is decided, and of which each keeps other kernels."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.inductor.fusion import decide
from inductor_plugin.inductor.graph.due import due_of_decisions
from inductor_plugin.inductor.graph.session import OBSERVERS
from inductor_plugin.tuning.ranks.ledger import LEDGER
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.fusion_lab import APART, FUSED, A, B, C, Times, activated, fusions, launches
from tests.support.lowering import Lab, visited_first
from tests.support.ranks.joined import Join, joining
from tests.support.ranks.simulated import MemoryStore

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Join:
    return joining(monkeypatch)


@dataclass
class LateStore(MemoryStore):
    """The store of a job as a rank sees it that asks just before another one decides.

    Attributes:
        late: Problems whose decision it does not see when it asks first.
    """

    late: set[str] = field(default_factory=set[str])

    def get(self, key: str) -> str | None:
        kind, _, problem = key.partition("/")[2].partition("/")
        if kind == "decision" and problem in self.late:
            self.late.remove(problem)
            return None
        return super().get(key)


@contextmanager
def observed() -> Generator[list[TuningTicket]]:
    """Return the problems of the graphs that are lowered in the block."""
    tickets: list[TuningTicket] = []

    def take(decided: Sequence[TuningTicket]) -> None:
        tickets.extend(decided)

    OBSERVERS.append(take)
    try:
        yield tickets
    finally:
        OBSERVERS.remove(take)


def lowered(lab: Lab, **options: Any) -> tuple[str, TuningTicket]:
    """Return the code of a product with its epilogue, and the fusion."""
    with lab.open(), observed() as tickets:
        code = lab.lower(activated, A, B, C, **options)
    (fusion,) = [ticket for ticket in tickets if ticket.problem.epilogue]
    return code, fusion


def place(ticket: TuningTicket) -> str:
    return f"{ticket.problem.op}/{ticket.digest}"


def without(
    monkeypatch: pytest.MonkeyPatch, name: str, dropped: Callable[[Any, Any], list[str]]
) -> None:
    """Let a rank's estimates rule out kernels of a shortlist: it lacks the registers that another rank's compiler has reported."""
    stock = getattr(decide, name)

    def kept(fusion: Any, *given: Any) -> Any:
        result = stock(fusion, *given)
        shortlist = given[0] if given else result
        for each in dropped(fusion, shortlist):
            del shortlist.kept[each]
        return result

    monkeypatch.setattr(decide, name, kept)


def kernel_of(winner: str) -> Callable[[Any, Any], list[str]]:
    """Return what names the product's kernel in a fused candidate, in a shortlist."""

    def named(fusion: Any, shortlist: Any) -> list[str]:
        choices = fusion.pending.choices
        return [
            name
            for name, estimate in shortlist.kept.items()
            if decide.fused_offer(fusion, name, choices[name], estimate).candidate_id == winner
        ]

    return named


def visited(_fusion: Any, shortlist: Any) -> list[str]:
    return [name for name in shortlist.kept if name.startswith("cutlass")]


@pytest.mark.parametrize("times", [FUSED, APART])
def test_a_fusion_that_another_rank_has_measured_runs_here_and_counts_as_decided_so(
    join: Join,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    times: Times,
) -> None:
    store = MemoryStore()
    join(0, store)
    code, first = lowered(Lab(times, tmp_path / "first"))
    assert first.verdict is not None
    winner = first.verdict.winner or ""
    assert winner.startswith("fused") == (times is FUSED)
    LEDGER.forget()
    without(monkeypatch, "_shortlist", kernel_of(winner))
    join(1, LateStore(store.values, late={place(first)}))
    lab = Lab(times, tmp_path / "second")
    again, other = lowered(lab)
    assert (again, other.verdict) == (code, first.verdict)
    assert due_of_decisions([other]) is None
    assert fusions(lab) == []  # nothing is measured twice
    (said,) = [w for p, w in LEDGER.statement().winners.items() if p.endswith(place(first))]
    assert said == winner
    assert "is not offered here" not in caplog.text


def test_a_fusion_with_a_cutlass_kernel_that_another_rank_has_measured_is_built_here(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    store, options = MemoryStore(), {"gemm_backends": "ATEN,TRITON,CUTLASS"}
    join(0, store)
    code, first = lowered(Lab(visited_first, tmp_path / "first"), **options)
    assert "cutlass_mm_epilogue" in code
    without(monkeypatch, "_visitors", visited)
    join(1, LateStore(store.values, late={place(first)}))
    lab = Lab(visited_first, tmp_path / "second")
    again, other = lowered(lab, **options)
    assert (again, other.verdict) == (code, first.verdict)
    (task,) = fusions(lab)
    assert (task.measured, len(task.entries), task.done.is_set()) == (False, 1, True)
    assert launches(again) == launches(code)
