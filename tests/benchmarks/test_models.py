"""The benchmark of whole networks: its runs, its figures, its processes and its networks."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.harness.arms import Arm
from benchmarks.models import __main__ as command
from benchmarks.models.arm import compiler, differentiated, training
from benchmarks.models.figures import OPEN, WITHIN
from benchmarks.models.networks import NETWORKS
from benchmarks.models.plan import ARMS, GUARDED, chosen, planned

GUARD = {
    "problems": 3,
    "first_call_s": 10.0,
    "guard_s": 0.5,
    "graphs_compared": 1,
    "graphs_reduced": 0,
    "graphs_left_out": 2,
}
FACTS = {
    "gpu": "cpu",
    "torch": "2",
    "sources": "a",
    "environment": {"device": {"name": "first", "capability": "AVX2"}},
}


def test_each_network_runs_in_eight_configurations() -> None:
    runs = planned(list(NETWORKS))
    assert len(runs) == len({run.name for run in runs}) == 8 * len(NETWORKS) == 80
    assert len({run.configuration for run in runs}) == 8
    assert runs[0].name == "inference, 2 threads, quiet, mixer"


def test_runs_are_chosen_by_parts_of_their_names() -> None:
    runs = planned(["bert", "lstm"])
    assert chosen(runs, []) == runs
    assert len(chosen(runs, ["bert"])) == 8
    assert [
        run.name for run in chosen(runs, ["training,1 thread, 2 busy, lstm", "lstm, quiet"])
    ] == [
        "inference, 2 threads, quiet, lstm",
        "training, 2 threads, quiet, lstm",
        "inference, 1 thread, quiet, lstm",
        "training, 1 thread, quiet, lstm",
        "training, 1 thread, 2 busy, lstm",
    ]
    with pytest.raises(ValueError, match="no run has ber in its name"):
        chosen(runs, ["bert", "ber"])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_finite_and_the_same_every_time(name: str) -> None:
    results: list[torch.Tensor] = []
    for _ in range(2):
        torch.manual_seed(0)
        model, inputs = NETWORKS[name]()
        with torch.no_grad():
            results.append(model.eval()(*inputs))
    assert bool(results[0].isfinite().all())
    assert torch.equal(results[0], results[1])


def test_the_gradient_of_the_input_is_looked_at_where_weights_are_in_8_bits() -> None:
    torch.manual_seed(0)
    model, inputs = NETWORKS["int8_mlp"]()
    assert differentiated(model, inputs) is inputs[0]
    gradient = training(model, model, inputs)()
    assert gradient.shape == inputs[0].shape
    assert bool(gradient.isfinite().all())
    model, inputs = NETWORKS["lstm"]()
    assert differentiated(model, inputs) is next(model.parameters())


class World:
    """Has the place of the arms' processes.

    Attributes:
        events: What happened, in order.
        variables: The variables of each set of arms.
        broken: Arms that cannot compile.
        ms: Milliseconds of each arm.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.variables: list[Mapping[str, str]] = []
        self.broken: tuple[str, ...] = ()
        self.ms = {"plain": 2.0, "stock": 1.0, "ours": 1.0, "guarded": 1.0}

    @contextmanager
    def load(self, name: str) -> Generator[None]:
        self.events.append(f"{name} begins")
        yield
        self.events.append(f"{name} ends")

    @contextmanager
    def arms(self, names: Any, module: str, *, dry: bool, environment: Any) -> Generator[list[Any]]:
        assert (module, dry) == ("benchmarks.models.arm", True)
        self.variables.append(environment)
        yield [FakeArm(self, name) for name in names]


class FakeArm:
    """An arm of a `World`."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def start(self) -> None:
        self.world.events.append(f"{self.name} starts")

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert limit_s > 0
        self.world.events.append(f"{self.name} {request['do']}")
        if request["do"] == "sample":
            return {"ms": self.world.ms[self.name]}
        return {"failed": "RuntimeError: broken"} if self.name in self.world.broken else dict(GUARD)

    def end(self) -> None:
        self.world.events.append(f"{self.name} ends")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    this = World()
    monkeypatch.setattr(command, "load", this.load)
    monkeypatch.setattr(command, "arms", this.arms)
    monkeypatch.setattr(command, "machine", mock.Mock(return_value=dict(FACTS)))
    return this


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    out = tmp_path / "models.json"

    def call(*arguments: str) -> tuple[int, Any]:
        status = command.main(["--rounds", "2", "--out", str(out), *arguments])
        return status, json.loads(out.read_text()) if out.exists() else None

    return call


def test_networks_are_tuned_beside_a_load_and_sampled_in_later_processes_without(
    world: World, go: Callable[..., tuple[int, Any]]
) -> None:
    status, written = go(
        "--only", "inference, 1 thread, 2 busy, bert", *("--launches", "2", "--most-launches", "2")
    )
    assert status == 0
    tuned = [
        event
        for arm in ARMS
        for event in (
            *(f"{arm} starts", f"{arm} begin"),
            *("2 busy begins", f"{arm} prepare", "2 busy ends", f"{arm} ends"),
        )
    ]
    assert world.events[:18] == tuned
    for launch, (a, b, c) in enumerate((ARMS, (*ARMS[1:], ARMS[0]))):
        began = 18 + 18 * launch
        assert world.events[began : began + 18] == [
            *(f"{arm} starts" for arm in (a, b, c)),
            *(f"{arm} begin" for arm in (a, b, c)),
            *(f"{arm} prepare" for arm in (a, b, c)),
            *(f"{arm} sample" for arm in (a, b, c, b, c, a)),
            *(f"{arm} ends" for arm in (a, b, c)),
        ]
    assert len(world.events) == 54
    assert world.variables == [{"OMP_NUM_THREADS": "1"}]
    (only,) = written["rows"]
    assert only["to_plain"] == {"median": 0.5, "low": 0.5, "high": 0.5, "verdict": WITHIN}
    assert (only["tuning"]["ours"]["guard_s"], only["later_guard_s"]) == (0.5, 1.0)
    assert written["samples"][only["name"]]["ours"]["samples_ms"] == [1.0] * 4
    assert written["summary"]["to_plain"] == 0.5
    assert all(each["none_slower"] and each["mean_at_most_1"] for each in written["claims"])


def test_one_configuration_of_each_network_has_an_arm_that_always_compares_its_graphs(
    world: World, go: Callable[..., tuple[int, Any]]
) -> None:
    runs = planned(list(NETWORKS))
    guarded = [run.network for run in runs if GUARDED in run.arms]
    assert guarded == list(NETWORKS)
    _, written = go("--only", "2 threads, quiet, bert")
    first, second = written["rows"]
    assert first["tuning"]["guarded"] == GUARD
    assert (first["guarded_to_ours"]["median"], first["guarded_to_plain"]["median"]) == (1.0, 0.5)
    assert "guarded" not in second["tuning"]
    said = {each["name"]: each for each in written["claims"]}
    (name,) = [name for name in said if "guarded" in name]
    assert name == f"{first['configuration']}: guarded"
    assert (said[name]["compares"], said[name]["none_slower"]) == (True, True)
    assert (said[name]["guard_s"], said[name]["guard_share"]) == (0.5, 0.05)
    assert "guarded prepare" in world.events


def test_what_is_finished_is_not_measured_again_on_another_machine(
    world: World, go: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go("--only", "inference, 2 threads, bert")
    world.events.clear()
    another = {"environment": {"device": {"name": "second", "capability": "AVX512"}}}
    monkeypatch.setattr(command, "machine", mock.Mock(return_value=FACTS | another))
    status, written = go("--only", "inference, 2 threads, bert", "lstm, training, quiet")
    assert status == 0
    assert len(world.variables) == 4
    assert len(written["rows"]) == len(written["samples"]) == 4
    of = [row["processor"].rpartition(",")[0] for row in written["rows"]]
    assert of == ["first, AVX2"] * 2 + ["second, AVX512"] * 2
    assert len(written["configurations"]) == 4
    status, written = go("--minutes", "0")
    assert (status, len(written["rows"]), len(world.variables)) == (0, 4, 4)


def test_launches_go_on_while_an_interval_is_open(
    world: World, go: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.97, 0.97, 1.07, 1.07] * 50)  # two rounds a launch
    ask = FakeArm.ask

    def unsteady(arm: FakeArm, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        answer = ask(arm, request, limit_s)
        return {"ms": next(times)} if arm.name == "ours" and "ms" in answer else answer

    monkeypatch.setattr(FakeArm, "ask", unsteady)
    only = (
        "--only",
        "bert, inference, 2 threads, quiet",
        "--launches",
        "2",
        "--most-launches",
        "4",
    )
    _, written = go(*only)
    assert written["rows"][0]["launches"] == 4
    assert written["rows"][0]["to_stock"]["verdict"] == OPEN
    monkeypatch.setattr(FakeArm, "ask", ask)
    _, written = go(*only, "--fresh")
    assert written["rows"][0]["launches"] == 2


def test_an_arm_that_fails_is_named_and_its_run_is_measured_again(
    world: World, go: Callable[..., tuple[int, Any]]
) -> None:
    only = ("--only", "bert, inference, 2 threads, quiet")
    world.broken = ("stock",)
    status, written = go(*only)
    assert status == 1
    assert written["rows"][0]["failed"] == ["stock: RuntimeError: broken"]
    assert "to_stock" not in written["rows"][0]
    assert written["rows"][0]["to_plain"]["median"] == 0.5
    assert "stock sample" not in world.events
    world.broken = ()
    status, written = go(*only)
    assert (status, written["rows"][0]["failed"]) == (0, [])


def test_a_run_that_is_none_is_refused(
    go: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        go("--only", "berta")
    assert "no run has berta in its name" in capsys.readouterr().err


def test_tuned_graphs_are_compared_with_those_of_library_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def compiled(model: torch.nn.Module, **how: Any) -> torch.nn.Module:
        given.append(how)
        return model

    monkeypatch.setattr(torch, "compile", compiled)
    for arm in (*ARMS, GUARDED):
        compiler(arm, tmp_path)(torch.nn.Identity())
    plain, stock, ours, guarded = given
    assert (plain["options"], stock["options"]) == ({"max_autotune": False}, {"max_autotune": True})
    assert ours["backend"] == "inductor_plugin"
    assert "verify_graph" not in ours["options"]
    assert guarded["options"] == {**ours["options"], "verify_graph": "on"}
    assert Path(ours["options"]["cache_dir"]).parent == tmp_path


@pytest.mark.slow
def test_a_later_process_of_an_arm_compiles_and_samples_a_network(tmp_path: Path) -> None:
    request = {"do": "prepare", "network": "half_mlp", "training": False}
    arm = Arm("ours", tmp_path, "benchmarks.models.arm", dry=True)
    try:
        first = arm.ask(request, 600.0)
        arm.end()
        second = arm.ask(request, 600.0)
        assert arm.ask({"do": "sample"}, 60.0)["ms"] > 0
    finally:
        arm.stop()
    assert first["problems"] > 0
    assert max(first["error"], second["error"]) < 0.05
    assert 0.0 <= first["guard_s"] < first["first_call_s"]
