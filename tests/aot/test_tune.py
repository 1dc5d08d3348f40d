"""Models tuned on this machine: every decision is in the cache, for each set of inputs, forward and backward."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention as sdpa

from inductor_plugin.aot import tune as tune_module
from inductor_plugin.aot.tune import TuneRequest, device_of, tune
from inductor_plugin.cache import open_store
from inductor_plugin.errors import CacheError, OptionError
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.pins.replay import read_pins
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.cache.records import measured, record
from tests.support.fakes.tasks import problem


class Attention(nn.Module):
    """One attention; its gradient is another problem."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return sdpa(q * self.scale, k, k)


class Index(nn.Module):
    """Its output has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


def attention() -> tuple[nn.Module, Any]:
    return Attention(), (torch.randn(1, 2, 64, 16), torch.randn(1, 2, 64, 16))


def two_sets() -> tuple[nn.Module, Any]:
    return nn.Linear(2, 2), [(torch.ones(1, 2),), (torch.ones(3, 2),)]


def index() -> tuple[nn.Module, Any]:
    return Index(), (torch.ones(1, 2),)


def request(name: str, folder: Path, **more: Any) -> TuneRequest:
    options = {"cache_dir": str(folder), "table": "off", "progress": "off"}
    return TuneRequest(f"{__name__}:{name}", options, **more)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Keep how each model is compiled, instead of compiling it."""
    kept: list[dict[str, Any]] = []

    def compile_nothing(model: nn.Module, **how: Any) -> nn.Module:
        kept.append({**how, "freezing": tune_module.inductor_config.freezing})
        return model

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return kept


@pytest.mark.usefixtures("inductor_cache")
def test_a_training_step_is_tuned_with_its_gradient_and_known_the_next_time(
    cache_dir: Path, tmp_path: Path
) -> None:
    pins = tmp_path / "pins.json"
    first = tune(request("attention", cache_dir, training=True, pin_file=pins))
    operators = {problem.describe.partition("(")[0] for problem in first.problems}
    assert operators == {"attention", "attention_backward"}
    assert not any(problem.known for problem in first.problems)
    stays = [problem.speedup for problem in first.problems if problem.winner == problem.library]
    assert set(stays) <= {None, 1.0}
    assert {record.digest for record in open_store(cache_dir).iter_records()} >= {
        problem.key for problem in first.problems
    }
    assert all(read_pins(str(pins)).has(operator) for operator in operators)
    again = tune(request("attention", cache_dir, training=True))  # its graphs are in no cache's way
    assert {problem.key for problem in again.problems} == {p.key for p in first.problems}
    assert all(problem.known or problem.provisional for problem in again.problems)


def test_each_set_of_inputs_is_compiled_for_itself(
    compiles: list[dict[str, Any]], cache_dir: Path
) -> None:
    said: list[str] = []
    assert tune(request("two_sets", cache_dir), said.append).sets == 2
    assert [how["dynamic"] for how in compiles] == [False, False]
    assert said == ["inputs 1 of 2: 0 problems so far", "inputs 2 of 2: 0 problems so far"]


def test_unknown_sizes_are_compiled_for_each_set(
    compiles: list[dict[str, Any]], cache_dir: Path
) -> None:
    """The sets may be of several size classes, each with a record of its own (see test_tune_sets.py)."""
    tune(request("two_sets", cache_dir, dynamic=True))
    assert [how["dynamic"] for how in compiles] == [True, True]


@pytest.mark.parametrize("training", [False, True])
def test_weights_are_frozen_for_inference_on_a_cpu(
    compiles: list[dict[str, Any]], cache_dir: Path, training: bool
) -> None:
    report = tune(request("two_sets", cache_dir, training=training))
    assert [how["freezing"] for how in compiles] == [not training] * 2
    assert report.frozen is not training


class Scale(nn.Module):
    """A model without parameters, and with a buffer if there is one."""

    def __init__(self, factor: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_model_is_tuned_where_it_or_its_inputs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was moved to CUDA, or from another package's device to the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tune_module.lookup, "present", lambda: ("npu:0",))
    here = torch.ones(1)
    with FakeTensorMode():
        there, other = torch.ones(2, device="xpu:1"), torch.ones(2, device="cuda:3")
    assert device_of(nn.Linear(2, 2), [(here,)]) == "cuda"
    assert device_of(Scale(there), [(here, other)]) == "xpu:1"
    assert device_of(Scale(here), [(here,), ({"mask": [there]},)]) == "xpu:1"
    assert device_of(Scale(), [{"x": other}]) == "cuda:3"
    assert device_of(Scale(torch.ones(1, device="meta")), [()]) == "cuda"


def test_a_model_on_the_cpu_is_tuned_on_the_first_device_that_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present: list[str] = []
    monkeypatch.setattr(tune_module.lookup, "present", lambda: tuple(present))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(nn.Linear(2, 2), [()]) == "cpu"
    present += ["npu:0", "npu:1"]
    assert device_of(nn.Linear(2, 2), [()]) == "npu:0"


@pytest.mark.usefixtures("compiles")
def test_model_and_inputs_are_moved_to_a_described_device_and_not_frozen(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(tune_module.lookup, "present", lambda: ("meta",))  # stands for an NPU
    report = tune(request("two_sets", cache_dir))
    assert (report.device, report.frozen) == ("meta", False)


@pytest.mark.usefixtures("compiles")
def test_nothing_is_tuned_into_a_cache_that_cannot_keep_it(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_dir.write_text("a file in its place")
    with pytest.raises(CacheError, match="cannot be written to"):
        tune(request("two_sets", cache_dir))
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE", "off")
    with pytest.raises(CacheError, match="unset INDUCTOR_PLUGIN_CACHE"):
        tune(request("two_sets", tmp_path / "other"))


@pytest.mark.usefixtures("compiles")
def test_results_that_were_not_written_are_counted(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*_: Any) -> None:
        options = {"cache_dir": str(cache_dir)}
        store = tune_module.store_to_write(tune_module.Config.load(options))
        with monkeypatch.context() as patched:
            patched.setattr("inductor_plugin.cache.atomic.write", full)
            store.put_record(record(measured("a")))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tune_module, "_call", call)
    assert tune(request("attention", cache_dir)).unwritten == 1


@pytest.mark.usefixtures("compiles")
def test_a_model_without_a_gradient_is_not_trained(cache_dir: Path) -> None:
    with pytest.raises(OptionError, match="no output with a gradient; leave out --training"):
        tune(request("index", cache_dir, training=True))
    assert tune(request("index", cache_dir)).problems == ()


def test_gradients_are_not_kept(
    compiles: list[dict[str, Any]], cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 2)
    monkeypatch.setattr(sys.modules[__name__], "two_sets", lambda: (model, (torch.ones(1, 2),)))
    tune(request("two_sets", cache_dir, training=True))
    assert len(compiles) == 1
    assert model.weight.grad is None


def ticket(digest: str, speedup: float | None, winner: str | None = "a") -> TuningTicket:
    selection: Any = None
    submitted = TuningTicket(selection, problem(), digest, (), {}, {})
    submitted.verdict = Verdict(winner, "library", "why", speedup)
    return submitted


def test_problems_are_listed_by_what_was_gained_and_undecided_ones_not_at_all() -> None:
    undecided = ticket("u", None)
    undecided.verdict = None
    tickets = [ticket("d", 1.0), ticket("c", 1.5), undecided, ticket("b", 2.0), ticket("a", None)]
    known = dict.fromkeys("abcdu", False)
    problems: Any = tune_module._problems(tickets, known)  # pyright: ignore[reportPrivateUsage]
    assert [each.key for each in problems] == ["b", "c", "a", "d"]


@pytest.mark.usefixtures("compiles")
def test_a_problem_of_several_sets_was_known_if_it_was_before_the_first(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = {"new": (False, True), "old": (True, True)}
    calls = iter(range(2))
    keep: list[Any] = []

    def observe(callback: Any) -> nullcontext[None]:
        keep.append(callback)
        return nullcontext()

    def call(*_: Any) -> None:
        number = next(calls)
        for digest, hits in tickets.items():
            decided = ticket(digest, 1.5)
            decided.hit = hits[number]
            keep[0]([decided])

    monkeypatch.setattr(tune_module, "observe", observe)
    monkeypatch.setattr(tune_module, "_call", call)
    report = tune(request("two_sets", cache_dir))
    assert {each.key: each.known for each in report.problems} == {"new": False, "old": True}


@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_there_in_training_alone(
    monkeypatch: pytest.MonkeyPatch, cache_dir: Path, training: bool
) -> None:
    enabled: list[bool] = []

    def compiled(model: nn.Module, **_how: Any) -> Any:
        def call(*inputs: Tensor) -> Any:
            enabled.append(torch.is_grad_enabled())
            return model(*inputs)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    tune(request("two_sets", cache_dir, training=training))
    assert enabled == [training] * 2
