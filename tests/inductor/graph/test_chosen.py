"""Around which calls of the scheduler something is written, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.inductor.graph.chosen import ChosenKernels
from inductor_plugin.inductor.graph.kernel_ranges import RangeWriter

pytestmark = pytest.mark.compat


class Backend:
    """A backend that writes a line for a template."""

    def codegen_template(self, *_nodes: Any, only_gen_src_code: bool = False) -> str:
        return "a source to measure" if only_gen_src_code else "a call"


@dataclass
class Scheduler:
    """What `ChosenKernels.watch` surrounds."""

    backend: Backend = field(default_factory=Backend)
    freed: list[str] = field(default_factory=list[str])
    mutation_real_name: dict[str, str] = field(default_factory=dict[str, str])

    def free_buffers(self) -> None:
        self.freed.append("free")

    def codegen_extern_call(self, node: Any) -> str:
        return "an extern call"

    def get_backend(self, device: Any) -> Backend:
        return self.backend


def watched() -> Any:
    """Return a scheduler whose calls are surrounded."""
    graph: Any = SimpleNamespace(cpp_wrapper=False, scheduler=Scheduler())
    ChosenKernels([RangeWriter()]).watch(graph)
    return graph.scheduler


def test_nothing_is_written_around_a_source_that_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []

    def before(_chosen: Any, _scheduler: Any, nodes: Any) -> list[Any]:
        looked_at.append(len(nodes))
        return []

    monkeypatch.setattr(ChosenKernels, "_before", before)
    backend = watched().get_backend(None)
    assert backend.codegen_template("node", [], [], only_gen_src_code=True) == "a source to measure"
    assert looked_at == []
    assert backend.codegen_template("node", ["relu"], ["cast", "scale"]) == "a call"
    assert looked_at == [4]


def test_a_backend_is_surrounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel asks for its backend; surrounded twice, it would be checked twice."""
    looked_at: list[Any] = []

    def before(_chosen: Any, _scheduler: Any, nodes: Any) -> list[Any]:
        looked_at.append(nodes)
        return []

    monkeypatch.setattr(ChosenKernels, "_before", before)
    scheduler = watched()
    scheduler.get_backend(None)
    scheduler.get_backend(None).codegen_template("node", [], [])
    assert looked_at == [["node"]]
    assert scheduler.codegen_extern_call("mm") == "an extern call"
    assert looked_at == [["node"], ["mm"]]


def test_what_comes_behind_a_call_is_written_before_buffers_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The buffers of a template are freed inside of its code generation."""
    graph: Any = SimpleNamespace(cpp_wrapper=False, scheduler=Scheduler())
    scheduler = graph.scheduler

    def before(_chosen: Any, _scheduler: Any, _nodes: Any) -> list[Any]:
        return [lambda: scheduler.freed.append("check")]

    def freeing(_backend: Backend, *_nodes: Any) -> str:
        scheduler.free_buffers()
        return "a call"

    monkeypatch.setattr(ChosenKernels, "_before", before)
    monkeypatch.setattr(Backend, "codegen_template", freeing)
    ChosenKernels([RangeWriter()]).watch(graph)
    scheduler.get_backend(None).codegen_template("node", [], [])
    assert scheduler.freed == ["check", "free"]
